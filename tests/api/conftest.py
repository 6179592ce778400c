"""A queue with names to be kept secret, and its settings."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.consuming import Consuming


@pytest.fixture
def options(consuming: "Consuming", settings) -> Callable[..., None]:
    """Set SQLQUEUE to the tests' options and these."""

    from tests.api.asking import OPTIONS  # the apps are ready only now

    def choose(**changes: Any) -> None:
        settings.SQLQUEUE = OPTIONS | changes

    choose()
    return choose


@pytest.fixture
def backlog(options, consuming: "Consuming") -> None:
    """A group that no process serves, with three messages to handle and one dead letter."""
    from sqlqueue import publish
    from tests.api.asking import GROUP, TOPIC, refuse_the_first

    consuming.consumer(TOPIC, refuse_the_first, group=GROUP, max_attempts=1)
    publish(TOPIC, "first")
    consuming.drain()
    for number in range(3):
        publish(TOPIC, number)
