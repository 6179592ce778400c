"""Starting `runconsumers` with the handlers of these tests."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.processes import ROOT, ManageCommand, ManageCommands

Run = Callable[..., ManageCommand]


@pytest.fixture
def run(manage: ManageCommands) -> Run:
    """Start `runconsumers` with these arguments; keywords are settings of SQLQUEUE, `env` adds to the environment,
    `script` is another one than manage.py."""

    def start(
        *arguments: str, env: dict[str, str] | None = None, script: Path = ROOT / "manage.py", **options: object
    ) -> ManageCommand:
        variables = {"DJANGO_SETTINGS_MODULE": "tests.management.settings", "QUEUE_OPTIONS": json.dumps(options)}
        return manage("runconsumers", *arguments, env=variables | (env or {}), script=script)

    return start
