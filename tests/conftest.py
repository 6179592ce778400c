"""Starts the database before Django's settings are read, and gives the tests their processes."""

import os
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import django
import pytest
from django.conf import settings as django_settings
from django.db import connections
from django.test import SimpleTestCase
from hypothesis import HealthCheck
from hypothesis import settings as hypothesis_settings

from tests import reruns
from tests.processes import ManageCommands
from tests.servers import DatabaseChoiceError, TestDatabase
from tests.servers.private import PrivateServer, ServerError

if TYPE_CHECKING:
    from pytest_django import Settings

    from tests.consumer_processes import Consumers
    from tests.consuming import Consuming
    from tests.steady import Steady

# A shell lets what it starts in the background ignore Ctrl-C, and with it everything that this process starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

DATABASE = pytest.StashKey[TestDatabase]()
# Folders whose tests are about what stands above the log's own statements. `make test` runs them on MariaDB alone.
ABOVE_THE_LOG: Final = (
    *("admin", "api", "asynchronous", "consumers", "contrib", "databases", "deployment", "example", "faults"),
    *("leases", "management", "monitoring", "races", "stats", "tasks", "tracing"),
)
# What make test-spark and make test-browser install for their suites; the header says what is absent.
NEEDS = {"contrib/spark": "pyspark", "browser": "playwright"}
if django.VERSION < (6, 0):
    NEEDS["tasks"] = "django_tasks"
collect_ignore = [suite for suite, package in NEEDS.items() if not find_spec(package)]

# Each run of the suite tries the same examples; with --hypothesis-profile=explore each run tries others.
for profile in ("sqlqueue", "explore"):
    hypothesis_settings.register_profile(
        profile,
        derandomize=profile == "sqlqueue",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    )
hypothesis_settings.load_profile("sqlqueue")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # The settings need the database's URL, so they are named here, and pytest-django has not read any before.
    if django_settings.configured:
        raise pytest.UsageError("Unset DJANGO_SETTINGS_MODULE (or --ds): the tests choose their own settings.")
    end_in_order_when_terminated()
    try:
        database = TestDatabase.start(os.environ)
    except (DatabaseChoiceError, ServerError) as error:
        raise pytest.UsageError(str(error)) from error
    config.stash[DATABASE] = database
    config.add_cleanup(database.end)
    os.environ.update(DATABASE=database.name, DATABASE_URL=database.url, DJANGO_SETTINGS_MODULE="tests.settings")
    django.setup()
    from tests import emptying  # the apps are ready only now

    emptying.use()


def end_in_order_when_terminated() -> None:
    """Let SIGTERM end the run as Ctrl-C does, so that no server and no process outlives it."""
    owner = os.getpid()

    def leave(number: int, _frame: FrameType | None) -> None:
        if os.getpid() != owner:  # a fork's
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        pytest.exit("terminated", returncode=128 + number)

    signal.signal(signal.SIGTERM, leave)


def pytest_report_header(config: pytest.Config) -> str:
    database = config.stash[DATABASE]
    left_out = "".join(f", no {NEEDS[suite]}: tests/{suite} is left out" for suite in collect_ignore)
    place = "a private server" if database.server else database.place
    return f"database: {database.name}, {place}{' behind PgBouncer' * bool(database.pooler)}{left_out}"


pytest_collection_modifyitems = reruns.pytest_collection_modifyitems


def pytest_runtest_setup(item: pytest.Item) -> None:
    name = item.config.stash[DATABASE].name
    of_servers = False
    for marker in item.iter_markers("database"):
        of_servers = "sqlite" not in marker.args
        if name not in marker.args:
            pytest.skip(f"concerns {', '.join(marker.args)}; this run is on {name}")
    if item.get_closest_marker("session") and item.config.stash[DATABASE].pooler:
        pytest.skip("needs a session of the server to itself; this run shares them")
    is_long = any(not marker.args or name in marker.args for marker in item.iter_markers("long"))
    if is_long and not os.environ.get("LONG"):
        pytest.skip("takes its time: make test-long runs it")
    once = item.get_closest_marker("once") or _touches_no_database(item)
    if once and name != "sqlite" and not of_servers:
        pytest.skip("does the same whatever the database is: the run on sqlite has it")
    if "SUITES" in os.environ and name == "sqlite" and not once and _is_left_to_mariadb(item):
        pytest.skip("beside other suites the run on mariadb has it; make test-sqlite runs it here")


def _touches_no_database(item: pytest.Item) -> bool:
    """Return whether a test has no database, by its fixtures and marks. The run on sqlite has it."""
    fixtures = set(getattr(item, "fixturenames", ()))
    of_database = {
        name for name in fixtures if name.endswith("db") or name.startswith(("database", "django_db", "live_server"))
    }
    marked = any(item.get_closest_marker(name) for name in ("django_db", "database", "long"))
    return not marked and not of_database and not issubclass(getattr(item, "cls", None) or object, SimpleTestCase)


def _is_left_to_mariadb(item: pytest.Item) -> bool:
    """Return whether `make test` runs this one on MariaDB alone."""
    folder = item.path.relative_to(item.config.rootpath / "tests").parts[0]
    named = [marker.args for marker in item.iter_markers("database")]
    long = [marker.args for marker in item.iter_markers("long")]
    return (
        folder in ABOVE_THE_LOG
        and all("mariadb" in names for names in named)
        and not any("mariadb" in on for on in long)
    )


@pytest.fixture(scope="session")
def database_name(pytestconfig: pytest.Config) -> str:
    """The database that this run was asked to use: sqlite, mariadb, mysql or postgresql."""
    return pytestconfig.stash[DATABASE].name


@pytest.fixture
def manage(transactional_db: None, tmp_path: Path) -> Iterator[ManageCommands]:
    """Start `manage.py` commands as processes on the test database; all are ended after the test."""
    commands = ManageCommands(tmp_path)
    yield commands
    commands.end()


@pytest.fixture
def consuming(transactional_db: None, settings: "Settings") -> Iterator["Consuming"]:
    """Register handlers for this test alone and host them in threads; all are ended after the test."""
    from tests.consuming import QUICK, Consuming  # the apps are ready only now

    settings.SQLQUEUE = QUICK
    consuming = Consuming()
    yield consuming
    consuming.end()


@pytest.fixture
def steady(transactional_db: None, settings: "Settings") -> Iterator["Steady"]:
    """Start subscribers whose statements can be counted, beside a log that has one message; all are ended after the
    test."""
    from sqlqueue import publish
    from tests.steady import SETTINGS, Steady  # the apps are ready only now

    settings.SQLQUEUE = dict(SETTINGS)
    publish("t", "warm")
    steady = Steady()
    yield steady
    steady.end()


@pytest.fixture
def consumer_options(settings: "Settings") -> dict[str, Any]:
    """The SQLQUEUE setting of the consumer processes and of the test itself; a test module may have one of its own."""
    from tests.consumer_processes import QUICK

    settings.SQLQUEUE = dict(QUICK)
    return settings.SQLQUEUE


@pytest.fixture
def consumers(manage: ManageCommands, tmp_path: Path, consumer_options: dict[str, Any]) -> "Consumers":
    """Start consumer processes that do what their messages say."""
    from tests.consumer_processes import Consumers

    return Consumers(manage, tmp_path, consumer_options)


@pytest.fixture
def database_server(transactional_db: None, pytestconfig: pytest.Config) -> Iterator[PrivateServer]:
    """The private server that the test database lives on, for tests that stop, kill and restart it."""
    server = pytestconfig.stash[DATABASE].server
    if server is None:
        pytest.skip("concerns a private database server")
    yield server
    server.start()
    connections.close_all()
