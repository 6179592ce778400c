"""Starting `runconsumers` with the handlers of these tests."""

import json
from collections.abc import Callable

import pytest

from tests.processes import ManageCommand, ManageCommands

Run = Callable[..., ManageCommand]


@pytest.fixture
def run(manage: ManageCommands) -> Run:
    """Start `runconsumers` with these arguments; keywords are settings of SQLQUEUE, `env` adds to the environment."""

    def start(*arguments: str, env: dict[str, str] | None = None, **options: object) -> ManageCommand:
        variables = {"DJANGO_SETTINGS_MODULE": "tests.management.settings", "QUEUE_OPTIONS": json.dumps(options)}
        return manage("runconsumers", *arguments, env=variables | (env or {}))

    return start
