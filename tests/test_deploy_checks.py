"""System checks of a deployment: what is said without a connection, and what heartbeats say."""

from datetime import timedelta
from pathlib import Path
from types import ModuleType

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.decorators import login_required
from django.core.checks import WARNING, CheckMessage, run_checks
from django.db import connections
from django.test import override_settings
from django.urls import include, path
from django.utils import timezone
from django_prometheus.exports import ExportToDjangoView

from sqlqueue.checks import TAG
from sqlqueue.models import SubscriberHeartbeat

pytestmark = pytest.mark.once

FILE = {"ENGINE": "django.db.backends.sqlite3", "OPTIONS": {}}


def found(deploy: bool = False, server: bool = False, alias: str = "default") -> dict[str, CheckMessage]:
    messages = run_checks(tags=[TAG], include_deployment_checks=deploy, databases=[alias] if server else None)
    assert all(message.hint and message.level == WARNING for message in messages)
    return {message.id.removeprefix("sqlqueue."): message for message in messages}


@pytest.fixture
def alias(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Let the queue live on another alias, of which nothing is ever asked; call it with that alias's settings."""
    applied = []

    def make(**config: object) -> None:
        known = connections.settings["default"] | {"NAME": str(tmp_path / "queue.sqlite3")}
        monkeypatch.setitem(connections.settings, "queue", known | FILE | config)
        override = override_settings(
            SQLQUEUE={"DATABASE": "queue"}, DATABASE_ROUTERS=["sqlqueue.database.router.Router"]
        )
        override.enable()
        applied.append(override)
        if hasattr(connections._connections, "queue"):  # made with other settings
            del connections["queue"]

    yield make
    for override in reversed(applied):
        override.disable()


def with_urls(*patterns: object) -> override_settings:
    urls = ModuleType("urls")
    urls.urlpatterns = list(patterns)
    return override_settings(ROOT_URLCONF=urls)


class TestSqlite:
    def test_w006_and_w007_are_seen_in_the_settings(self, alias) -> None:
        alias()
        assert {"W006", "W007"} <= set(found())

    @pytest.mark.parametrize("mode", ["IMMEDIATE", "exclusive"])
    @pytest.mark.parametrize(
        "pragma", ["PRAGMA journal_mode = WAL;", "pragma foreign_keys=1; PRAGMA journal_mode('wal')"]
    )
    def test_options_that_are_right_are_not(self, alias, mode: str, pragma: str) -> None:
        alias(OPTIONS={"transaction_mode": mode, "init_command": pragma})
        assert not {"W006", "W007"} & set(found())

    def test_w007_is_not_said_of_a_file_that_is_wal_already(self, alias, tmp_path: Path) -> None:
        import sqlite3

        file = tmp_path / "wal.sqlite3"
        with sqlite3.connect(file) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE t (n)")
        connection.close()
        alias(NAME=str(file))
        assert "W007" not in found()
        alias(NAME=str(tmp_path / "none.sqlite3"))
        assert "W007" in found()

    def test_nothing_is_opened_for_it(self, alias, tmp_path: Path) -> None:
        alias()
        found(deploy=True)
        assert not (tmp_path / "queue.sqlite3").exists()

    def test_of_another_server_nothing_is_said(self, alias) -> None:
        alias(ENGINE="django.db.backends.dummy")
        assert not {"W006", "W007"} & set(found())


class TestExposure:
    def test_w040_metrics_that_strangers_can_read(self) -> None:
        with with_urls(path("inner/", include("django_prometheus.urls"))):
            assert "/inner/metrics" in found(deploy=True)["W040"].msg
            assert "W040" not in found()

    def test_w040_is_not_said_of_metrics_behind_a_login(self) -> None:
        with with_urls(path("metrics", login_required(ExportToDjangoView))):
            assert "W040" not in found(deploy=True)
        middleware = ["django.contrib.auth.middleware.LoginRequiredMiddleware"]
        with with_urls(path("", include("django_prometheus.urls"))), override_settings(MIDDLEWARE=middleware):
            assert "W040" not in found(deploy=True)

    def test_a_project_without_urls_has_none_to_look_at(self) -> None:
        with override_settings():
            del django_settings.ROOT_URLCONF
            assert "W040" not in found(deploy=True)

    def test_health_alone_is_public_by_design(self) -> None:
        with with_urls(path("queue/", include("sqlqueue.urls"))):
            assert found(deploy=True).keys() <= {"W042"}


@pytest.mark.parametrize("token", ["change-me-to-something-long", "abcdabcdabcdabcdabcd"])
def test_w041_a_token_that_can_be_guessed(token: str) -> None:
    with with_urls(), override_settings(SQLQUEUE={"STATUS_TOKEN": token}):
        assert token not in found(deploy=True)["W041"].msg
        assert "W041" not in found()
    for right in ("", "abcdeabcdeabcdeabcde"):
        with with_urls(), override_settings(SQLQUEUE={"STATUS_TOKEN": right}):
            assert "W041" not in found(deploy=True)


class TestWaking:
    @pytest.mark.parametrize("host", ["db.example.com", "10.0.0.5", "::ffff:10.0.0.5"])
    def test_w042_a_loopback_address_and_a_database_elsewhere(self, alias, host: str) -> None:
        alias(ENGINE="django.db.backends.dummy", HOST=host)
        with with_urls():
            assert host in found(deploy=True)["W042"].msg
            assert "W042" not in found()

    @pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1", "::1", "/var/run/postgresql"])
    def test_of_a_database_on_this_host_it_is_not_said(self, alias, host: str) -> None:
        alias(ENGINE="django.db.backends.dummy", HOST=host)
        with with_urls():
            assert "W042" not in found(deploy=True)

    @pytest.mark.parametrize("options", [{"WAKE": False}, {"WAKE_ADDRESS": "10.0.0.7"}, {"WAKE_ADDRESS": "consumers"}])
    def test_nor_where_consumers_can_be_reached_or_poll(self, alias, options: dict[str, object]) -> None:
        alias(ENGINE="django.db.backends.dummy", HOST="db.example.com")
        with with_urls(), override_settings(SQLQUEUE={"DATABASE": "queue", **options}):
            assert "W042" not in found(deploy=True)

    @pytest.mark.django_db
    def test_w042_heartbeats_of_several_hosts_with_a_loopback_address(self) -> None:
        def beat(host: str, address: str, seconds: int = 60) -> None:
            expires = timezone.now() + timedelta(seconds=seconds)
            SubscriberHeartbeat.objects.create(
                subscriber=f"{host}-{address}",
                consumer_group="g",
                topic="t",
                host=host,
                address=address,
                expires_at=expires,
            )

        beat("one", "127.0.0.1:4000")
        beat("one", "127.0.0.1:4001")
        beat("gone", "127.0.0.1:4000", seconds=-60)
        beat("silent", "")
        assert "W042" not in found(server=True)
        beat("two", "10.0.0.2:4000")
        message = found(server=True)["W042"].msg
        assert "2 hosts" in message
        assert "one" in message
        assert "two" not in message
        SubscriberHeartbeat.objects.filter(host="one").update(address="10.0.0.1:4000")
        assert "W042" not in found(server=True)
