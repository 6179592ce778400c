"""The REST endpoints: what they tell, whom, and how little a stranger learns."""

import logging

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.test.utils import CaptureQueriesContext

from sqlqueue import publish
from sqlqueue.models import Message
from tests.api.asking import GROUP, TOKEN, TOPIC, bearing, insiders, logged_in, strangers
from tests.consuming import Consuming
from tests.processes import wait_until
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.django_db(transaction=True)
ENDPOINTS = ("/queue/health/live", "/queue/health/ready", "/queue/health/", "/queue/status/", "/queue/openapi.json")


class TestLive:
    def test_it_asks_no_database(self, options, django_assert_num_queries) -> None:
        with django_assert_num_queries(0):
            answer = Client().get("/queue/health/live")
        assert (answer.status_code, answer.json()) == (200, {"ok": True})


class TestReady:
    def test_the_database_and_its_tables_are_there(self, options) -> None:
        answer = Client().get("/queue/health/ready")
        assert (answer.status_code, answer.json()) == (200, {"ok": True})

    def test_a_missing_migration_makes_it_503(self, options) -> None:
        recorder = MigrationRecorder(connection)
        names = sorted(name for app, name in recorder.applied_migrations() if app == "sqlqueue")
        recorder.record_unapplied("sqlqueue", names[-1])
        try:
            stranger, insider = Client().get("/queue/health/ready"), bearing(TOKEN).get("/queue/health/ready")
        finally:
            recorder.record_applied("sqlqueue", names[-1])
        assert (stranger.status_code, stranger.json()) == (503, {"ok": False})
        assert (insider.status_code, insider.json()["problem"]) == (503, "migrations are not applied")
        assert Client().get("/queue/health/ready").status_code == 200


class TestHealth:
    def test_without_limits_everything_is_well(self, backlog) -> None:
        answer = bearing(TOKEN).get("/queue/health/")
        assert answer.status_code == 200
        (group,) = [each for each in answer.json()["groups"] if each["topic"] == TOPIC]
        assert group == {
            "topic": TOPIC,
            "group": GROUP,
            "paused": False,
            "outside_hours": False,
            "limited": False,
            "budget_spent": False,
            "lag": 3,
            "estimated": False,
            "oldest_age": pytest.approx(group["oldest_age"]),
            "dead_letters": 1,
            "subscribers": 0,
        }
        assert 0 <= group["oldest_age"] < 300

    @pytest.mark.parametrize(
        ("limits", "passed"),
        [
            ({"max_lag": 3}, []),
            ({"max_lag": 2}, [("max_lag", 3, 2)]),
            ({"max_dead_letters": 0}, [("max_dead_letters", 1, 0)]),
            ({"max_age": 3600}, []),
            ({"no_subscriber": True}, [("no_subscriber", 0, 1)]),
            ({"no_subscriber": True, "topics": {TOPIC: {"no_subscriber": False}}}, []),
            ({"max_lag": 100, "topics": {TOPIC: {"max_lag": 1}}}, [("max_lag", 3, 1)]),
            ({"max_lag": 1, "topics": {TOPIC: {"max_lag": None}}}, []),
            (
                {"max_lag": 1, "topics": {TOPIC: {"max_dead_letters": 0}}},
                [("max_lag", 3, 1), ("max_dead_letters", 1, 0)],
            ),
        ],
    )
    def test_a_limit_that_is_passed_makes_it_503(self, backlog, options, limits, passed) -> None:
        options(HEALTH=limits)
        stranger, insider = Client().get("/queue/health/"), bearing(TOKEN).get("/queue/health/")
        assert stranger.status_code == insider.status_code == (503 if passed else 200)
        assert stranger.json() == {"ok": not passed}
        told = insider.json()
        assert told["ok"] is (not passed)
        assert [(each["limit"], each["value"], each["allowed"]) for each in told["passed"]] == passed
        assert {(each["topic"], each["group"]) for each in told["passed"]} <= {(TOPIC, GROUP)}

    def test_an_age_that_is_passed(self, backlog, options) -> None:
        options(HEALTH={"max_age": 0})
        answer = bearing(TOKEN).get("/queue/health/")
        assert answer.status_code == 503
        (passed,) = answer.json()["passed"]
        assert (passed["limit"], passed["allowed"]) == ("max_age", 0)
        assert passed["value"] > 0

    def test_it_is_well_again_once_the_backlog_is_gone(self, backlog, options, consuming: Consuming) -> None:
        options(HEALTH={"max_lag": 2})
        assert Client().get("/queue/health/").status_code == 503
        consuming.drain()
        assert Client().get("/queue/health/").status_code == 200


class TestStatus:
    def test_it_tells_everything(self, backlog) -> None:
        told = bearing(TOKEN).get("/queue/status/").json()
        assert TOPIC in [topic["name"] for topic in told["topics"]]
        (group,) = [each for each in told["groups"] if each["topic"] == TOPIC]
        assert (group["group"], group["lag"], group["dead_letters"], group["partitions"]) == (GROUP, 3, 1, 4)
        assert told["highest_offset"] == Message.objects.order_by("-offset").first().offset
        assert (told["subscribers"], group["away"]) == (0, True)
        assert told["ok"] is True


class TestStrangers:
    def test_they_learn_nothing_but_ok(self, backlog) -> None:
        for who, client in strangers().items():
            bodies = {path: client.get(path) for path in ENDPOINTS}
            for path, answer in bodies.items():
                text = answer.content.decode() + str(dict(answer.headers))
                for secret in (TOPIC, GROUP, "secret", TOKEN, "group_figures"):
                    assert secret not in text, f"{who} reads {secret!r} at {path}"
            assert bodies["/queue/health/"].json() == {"ok": True}, who
            assert bodies["/queue/health/ready"].json() == {"ok": True}, who
            assert set(bodies["/queue/status/"].json()) == {"error"}, who

    def test_they_are_told_why_the_status_is_not_theirs(self, options) -> None:
        for who, client in strangers().items():
            answer = client.get("/queue/status/")
            known = who.startswith("staff")
            assert answer.status_code == (403 if known else 401), who
            assert ("WWW-Authenticate" in answer.headers) is not known, who

    def test_without_a_token_in_the_settings_none_is_right(self, options) -> None:
        options(STATUS_TOKEN="")
        for token in ("", TOKEN, "None"):
            assert bearing(token).get("/queue/status/").status_code == 401

    def test_those_who_may_see_do(self, backlog) -> None:
        for who, client in insiders().items():
            assert client.get("/queue/status/").json()["groups"], who
            assert TOPIC in client.get("/queue/health/").content.decode(), who

    def test_the_word_bearer_may_be_written_in_any_case(self, options) -> None:
        client = Client(headers={"Authorization": f"bearer {TOKEN}"})
        assert client.get("/queue/status/").status_code == 200

    def test_a_login_middleware_does_not_send_probes_to_the_login(self, options, settings) -> None:
        settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.contrib.auth.middleware.LoginRequiredMiddleware"]
        assert [Client().get(path).status_code for path in ENDPOINTS] == [200, 200, 200, 401, 200]

    def test_the_token_is_not_logged(self, backlog, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG):
            bearing(TOKEN).get("/queue/status/")
            bearing(TOKEN + "x").get("/queue/status/")
        assert TOKEN not in caplog.text


class TestManners:
    @pytest.mark.parametrize("path", ENDPOINTS)
    def test_they_only_read(self, options, path: str) -> None:
        client = bearing(TOKEN)
        for method in ("post", "put", "patch", "delete"):
            answer = getattr(client, method)(path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")

    @pytest.mark.parametrize("path", ENDPOINTS)
    def test_another_method_is_refused_as_such_behind_the_csrf_middleware(self, options, path: str) -> None:
        answer = Client(enforce_csrf_checks=True).post(path)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "GET, HEAD")

    @pytest.mark.parametrize("path", ENDPOINTS)
    def test_no_cache_keeps_an_answer(self, options, path: str) -> None:
        for client in (Client(), bearing(TOKEN)):
            answer = client.get(path)
            assert "no-store" in answer.headers["Cache-Control"]
            assert answer.headers["Content-Type"] == "application/json"
            head = client.head(path)
            assert (head.status_code, head.content) == (answer.status_code, b"")

    def test_hammering_costs_one_survey(self, backlog, options) -> None:
        options(STATS_INTERVAL=3600)
        client = Client()
        with CaptureQueriesContext(connection) as first:
            client.get("/queue/health/")
        with CaptureQueriesContext(connection) as others:
            for _ in range(20):
                assert client.get("/queue/health/").json() == {"ok": True}
                bearing(TOKEN).get("/queue/status/")
        assert len(first) > 0
        assert len(others) == 0

    def test_an_old_survey_is_taken_again(self, backlog, options) -> None:
        before = bearing(TOKEN).get("/queue/status/").json()["highest_offset"]
        offset = publish(TOPIC, 4).offset
        assert bearing(TOKEN).get("/queue/status/").json()["highest_offset"] == offset > before

    def test_they_answer_outside_of_a_request_s_transaction(self, options) -> None:
        connection.settings_dict["ATOMIC_REQUESTS"] = True
        try:
            with CaptureQueriesContext(connection) as statements:
                assert Client().get("/queue/health/ready").status_code == 200
        finally:
            connection.settings_dict["ATOMIC_REQUESTS"] = False
        assert not [each for each in statements if each["sql"].upper().startswith(("BEGIN", "SAVEPOINT", "COMMIT"))]


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_a_database_that_is_away_is_told_and_found_again(database_server: PrivateServer, options) -> None:
    paths = ("/queue/health/ready", "/queue/health/")
    assert [Client().get(path).status_code for path in paths] == [200, 200]
    database_server.stop()
    try:
        assert Client().get("/queue/health/live").status_code == 200
        for path in paths:
            answer = Client().get(path)
            assert (answer.status_code, answer.json()) == (503, {"ok": False})
        for path in (*paths, "/queue/status/"):
            answer = bearing(TOKEN).get(path)
            assert (answer.status_code, answer.json()["problem"]) == (503, "the queue's database does not answer")
    finally:
        database_server.start()
    # A pooler tries again some tenths of a second later.
    wait_until(lambda: [Client().get(path).status_code for path in paths] == [200, 200])


def test_a_user_who_is_no_longer_active_is_a_stranger(options) -> None:
    client = logged_in("former", "view_topic")
    assert client.get("/queue/status/").status_code == 200
    User.objects.update(is_active=False)
    assert client.get("/queue/status/").status_code == 401
