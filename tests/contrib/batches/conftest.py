"""What the tests of batches have in common."""

from typing import TYPE_CHECKING, Any

import pytest

from tests.admin.conftest import staff as staff

if TYPE_CHECKING:
    from tests.consuming import Consuming


@pytest.fixture
def called(consuming: "Consuming") -> list[Any]:
    """The payloads of the callbacks that were delivered, in their order."""
    found: list[Any] = []
    consuming.consumer("called", lambda delivery: found.append(delivery.payload))
    return found
