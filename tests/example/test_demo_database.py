"""The demo removes its own file only, and not while it is in use."""

from pathlib import Path

import pytest
from django.conf import LazySettings
from django.db import connection

from example_project.flights.demo_database import DemoDatabaseInUse, demo_in_use, is_demo_database
from example_project.secret_key import checkout_secret_key

pytestmark = pytest.mark.once


def test_only_the_default_sqlite_file_is_the_demos_own(settings: LazySettings, tmp_path: Path) -> None:
    settings.DEMO_DATABASE = connection.settings_dict["NAME"]
    assert is_demo_database() is (connection.vendor == "sqlite")
    settings.DEMO_DATABASE = tmp_path / "demo.sqlite3"
    assert not is_demo_database()


def test_a_second_demo_is_refused_while_the_first_runs(settings: LazySettings, tmp_path: Path) -> None:
    settings.VAR_DIR = tmp_path
    with demo_in_use(), pytest.raises(DemoDatabaseInUse, match="end it first"), demo_in_use():
        pass
    with demo_in_use():
        pass


def test_a_checkout_keeps_its_secret_key_to_itself(tmp_path: Path) -> None:
    file = tmp_path / "secret-key"
    key = checkout_secret_key(file)
    assert len(key) >= 50
    assert checkout_secret_key(file) == key
    assert file.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == [file]
