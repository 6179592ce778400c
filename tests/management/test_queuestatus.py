"""`manage.py queuestatus`: tables and JSON."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from sqlqueue import Delivery, Retry, publish
from sqlqueue.log.groups import register
from sqlqueue.log.topic_options import override
from sqlqueue.operations.topics import pause
from tests.consuming import QUICK, Consuming
from tests.factories import ActivityFactory
from tests.logs import LOG
from tests.management.running import run
from tests.processes import ManageCommands, database_url


def test_an_empty_queue(consuming: Consuming) -> None:
    said = run("queuestatus")
    assert said.code == 0
    assert "There are no topics yet" in said.out


def test_how_groups_stand(consuming: Consuming) -> None:
    @consuming.consumer("orders", group="mail")
    def handle(delivery: Delivery) -> None:
        raise Retry(delay=3600)

    publish("orders", 1, key="a")
    consuming.drain()
    publish("orders", 2, key="b")
    publish("orders", 3, delay=3600)
    publish("other", 1)
    said = run("queuestatus", "--topic", "orders")
    assert re.search(r"^orders +mail +2 .* 1 +0 +0 +0\.0 +0 +away: holds back collection$", said.out, re.MULTILINE)
    assert re.search(r"^orders +4 +1 +7 d +failures +0 +1 +0 +0$", said.out, re.MULTILINE)
    assert "other" not in said.out
    told = json.loads(run("queuestatus", "--json", "--group", "mail").out)
    [group] = told["groups"]
    assert (group["group"], group["lag"], group["failing"], group["away"]) == ("mail", 2, 1, True)
    assert {topic["name"]: topic["scheduled"] for topic in told["topics"]} == {"orders": 1, "other": 0}


def test_where_topics_differ_from_the_settings(consuming: Consuming, settings: Any) -> None:
    publish("orders", 1)
    publish("other", 1)
    override(LOG, "orders", {"history": "all"})
    settings.SQLQUEUE = {**QUICK, "RETENTION": 86_400 * 2}
    said = run("queuestatus").out
    assert re.search(r"^orders +4 +1 +7 d +all .* history overridden$", said, re.MULTILINE)
    assert "history of orders is all; the settings say failures: overridden" in said
    assert "retention of other is 7 d; the settings say 2 d: applied when the consumer processes start again" in said
    told = {topic["name"]: topic for topic in json.loads(run("queuestatus", "--json").out)["topics"]}
    assert (told["orders"]["history"], told["orders"]["overridden"]) == ("all", ["history"])
    assert (told["other"]["retention"], told["other"]["overridden"]) == (7 * 86_400, [])


def test_what_is_paused(consuming: Consuming) -> None:
    register(LOG, "mail", "orders")
    pause(LOG, "orders", "mail")
    assert re.search(r"^orders +mail .* paused$", run("queuestatus").out, re.MULTILINE)


def test_a_database_that_does_not_answer_has_its_own_exit_code(manage: ManageCommands, database_name: str) -> None:
    away = "sqlite:////nowhere/at/all.sqlite3" if database_name == "sqlite" else _without_server(database_url())
    for words in (["queuestatus"], ["queuetail", "orders"], ["queuepause", "orders"]):
        command = manage(*words, env={"DATABASE_URL": away})
        assert command.wait() == 4, command.output
        assert "does not answer" in command.output
        assert "Traceback" not in command.output
        assert "hunter2" not in command.output


def _without_server(url: str) -> str:
    scheme = url.split("://")[0]
    return f"{scheme}://somebody:hunter2@127.0.0.1:9/queue"


def test_what_filters_leave_out(consuming: Consuming) -> None:
    publish("orders", 1)
    register(LOG, "mail", "orders")
    register(LOG, "all", "orders")
    assert "filtered" not in run("queuestatus").out
    ActivityFactory(topic="orders", consumer_group="mail", filtered=600, acked=60)
    ActivityFactory(topic="orders", consumer_group="all", acked=60)
    assert re.findall(r"^orders +(\S+) .* filtered: [0-9.]+/s$", run("queuestatus").out, re.M) == ["mail"]
    found = {group["group"]: group for group in json.loads(run("queuestatus", "--json").out)["groups"]}
    assert found["all"]["rate"]["filtered"] == 0
    assert found["mail"]["rate"]["filtered"] == pytest.approx(10 * found["mail"]["rate"]["acked"])


def test_what_the_settings_alone_say(consuming: Consuming, settings: Any, admin_client: Client) -> None:
    publish("orders", 1)
    options = {"retention_from": "acked", "keep_collected": timedelta(days=90)}
    settings.SQLQUEUE = {**QUICK, "TOPICS": {"orders": options}, "STRICT_TOPICS": False}
    assert "retention from the acks, collected kept 90 d" in run("queuestatus").out
    (shown,) = json.loads(run("queuestatus", "--json").out)["topics"]
    assert (shown["retention_from"], shown["keep_collected"]) == ("acked", 90 * 86_400.0)
    html = admin_client.get("/admin/sqlqueue/topic/orders/change/").content.decode()
    assert "when every group has settled a message" in html
    assert "90 d in a table" in html
    settings.SQLQUEUE = QUICK
    html = admin_client.get("/admin/sqlqueue/topic/orders/change/").content.decode()
    assert "in a table" not in html
    assert "collected kept" not in run("queuestatus").out
