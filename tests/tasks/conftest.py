"""Tasks of one test: enqueued on this backend, and run by drain() or by consumer processes."""

from typing import Any

import pytest


@pytest.fixture(autouse=True)
def tasks(settings: Any) -> None:
    """Two backends: one that runs a task that raises once, and one that runs it up to three times."""
    from tests.tasks.declared import QUICK, TASKS, samples  # the apps are ready only now

    settings.SQLQUEUE = QUICK
    settings.TASKS = TASKS
    samples.RAN.clear()
