"""`manage.py queuestatus`: tables and JSON."""

import json
import re
from typing import Any

import pytest

from sqlqueue import Delivery, NewMessage, Retry, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.log.topic_options import override
from sqlqueue.models import Message
from sqlqueue.operations.pause import pause
from sqlqueue.stats.search import MOST_KEYS
from tests.consuming import QUICK, Consuming
from tests.factories import ActivityFactory
from tests.logs import LOG
from tests.management.running import run
from tests.processes import ManageCommands, database_url, wait_until


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
    assert re.search(r"^orders +4 +1 +7 d +failures +1 +0 +0$", said.out, re.MULTILINE)
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


class TestOfAMessage:
    def test_how_it_stands_in_every_group(self, consuming: Consuming) -> None:
        consuming.consumer("orders", lambda delivery: {"url": "x" * 100}, keep_results=3600)

        @consuming.consumer("orders", group="mail")
        def handle(delivery: Delivery) -> None:
            raise Retry("not\x1b[31m yet", delay=3600)

        publish("orders", 1, id="r-1", key="a")
        consuming.drain()
        said = run("queuestatus", "--topic", "orders", "--id", "r-1", "--key", "a")
        assert re.search(r"^default +acked +1 .*\{\"url\": \"x+…", said.out, re.MULTILINE)
        assert re.search(r"^mail +retrying +1 +20\d\d-", said.out, re.MULTILINE)
        assert "\x1b" not in said.out
        told = json.loads(run("queuestatus", "--topic", "orders", "--id", "r-1", "--key", "a", "--json").out)
        assert told["groups"]["default"]["result"] == {"url": "x" * 100}
        assert told["groups"]["mail"]["state"] == "retrying"

    def test_its_progress(self, consuming: Consuming) -> None:
        go = consuming.gate()

        @consuming.consumer("orders")
        def handle(delivery: Delivery) -> None:
            delivery.progress(3, 10, "pages")
            assert go.wait(60)

        publish("orders", 1, id="r-1")
        consuming.start()
        words = ("queuestatus", "--topic", "orders", "--id", "r-1")
        wait_until(lambda: "3 of 10: pages" in run(*words).out)
        assert json.loads(run(*words, "--json").out)["groups"]["default"]["progress"]["total"] == 10

    def test_one_that_is_scheduled(self, consuming: Consuming) -> None:
        publish("orders", 1, id="r-1", delay=3600)
        said = run("queuestatus", "--topic", "orders", "--id", "r-1")
        assert "orders r-1 is scheduled" in said.out
        assert "No group is registered that gets it." in said.out

    def test_one_that_is_unknown_is_an_error(self, consuming: Consuming) -> None:
        publish("orders", 1, id="r-1", key="a")
        for words in (["--id", "r-2"], ["--id", "r-1", "--key", "b"]):
            said = run("queuestatus", "--topic", "orders", *words)
            assert (said.code, said.out) == (1, "")
            assert "it was never published, or" in said.err

    @pytest.mark.parametrize("delay", [None, 3600])
    def test_one_with_a_key_is_found_without_it_and_of_several_keys_they_are_named(
        self, consuming: Consuming, delay: float | None
    ) -> None:
        publish("others", 1, id="r-1", key="c")
        publish("orders", 1, id="r-1", key="a", delay=delay)
        said = run("queuestatus", "--topic", "orders", "--id", "r-1")
        assert (said.code, said.err) == (0, "")
        assert "orders r-1 of key 'a' " in said.out
        publish("orders", 1, id="r-1", key="b", delay=delay)
        said = run("queuestatus", "--topic", "orders", "--id", "r-1")
        assert (said.code, said.out) == (1, "")
        assert "of several keys ('a', 'b'): name one by --key" in said.err

    def test_of_an_id_of_too_many_keys_some_are_named(self, consuming: Consuming) -> None:
        publish_many("orders", [NewMessage(1, id="r-1", key=f"k{n:02}") for n in range(MOST_KEYS + 1)])
        said = run("queuestatus", "--topic", "orders", "--id", "r-1")
        assert said.err.count("'k") == MOST_KEYS
        assert ", …)" in said.err

    def test_one_that_is_collected_is_found_by_its_result_without_its_key(self, consuming: Consuming) -> None:
        consuming.consumer("orders", lambda delivery: 7, keep_results=3600)
        publish("orders", 1, id="r-1", key="a")
        consuming.drain()
        Message.objects.all().delete()
        said = run("queuestatus", "--topic", "orders", "--id", "r-1")
        assert re.search("^default +acked +1 +7", said.out, re.MULTILINE)

    def test_by_its_offset_with_its_whole_errors(self, consuming: Consuming) -> None:
        def fail(delivery: Delivery) -> None:
            raise OSError(f"no {delivery.payload}\x1b[31m")

        consuming.consumer("orders", fail, group="mail", backoff=3600)
        consuming.consumer("orders", fail, group="bill", max_attempts=1)
        offset = publish("orders", "paper", key="a").offset
        consuming.drain()
        said = run("queuestatus", "--topic", "orders", "--offset", str(offset))
        assert f"of key 'a' at offset {offset}" in said.out
        for group in ("bill", "mail"):
            _, _, error = said.out.partition(f"The last error in group {group}:\n")
            assert error.startswith("Traceback (most recent call last):\n")
            assert "OSError: no paper" in error
        assert "\x1b" not in said.out
        [dead] = Message.objects.filter(topic="orders_dlq").values_list("offset", flat=True)
        said = run("queuestatus", "--topic", "orders_dlq", "--offset", str(dead))
        assert "OSError: no paper" in said.out.partition("The error of this dead letter:")[2]
        told = json.loads(run("queuestatus", "--topic", "orders", "--offset", str(offset), "--json").out)
        assert "OSError" in told["groups"]["mail"]["error"]

    def test_by_an_offset_of_another_topic_or_of_none(self, consuming: Consuming) -> None:
        offset = publish("others", 1).offset
        for at, why in ((offset, "it is one of topic 'others'"), (offset + 1, "the log has none at it")):
            said = run("queuestatus", "--topic", "orders", "--offset", str(at))
            assert (said.code, said.out) == (1, "")
            assert why in said.err

    def test_options_that_do_not_go_together(self, consuming: Consuming) -> None:
        one = ["--topic", "t"]
        of_two = (["--id", "a", *one, *one], ["--offset", "1", *one, *one], ["--id", "a", "--offset", "1", *one])
        for words in (["--id", "a"], ["--offset", "1"], ["--key", "a", *one], *of_two):
            assert run("queuestatus", *words).code == 1


def test_what_filters_leave_out(consuming: Consuming) -> None:
    publish("orders", 1)
    register(LOG, "mail", "orders")
    register(LOG, "all", "orders")
    assert "filtered" not in run("queuestatus").out
    ActivityFactory(topic="orders", consumer_group="mail", filtered=600, acked=60)
    ActivityFactory(topic="orders", consumer_group="all", acked=60)
    assert re.findall(r"^filtered: (.*) leaves out [0-9.]+ messages/s$", run("queuestatus").out, re.M) == [
        "mail of orders"
    ]
    found = {group["group"]: group for group in json.loads(run("queuestatus", "--json").out)["groups"]}
    assert found["all"]["filtered_per_second"] == 0
    assert found["mail"]["filtered_per_second"] == pytest.approx(10 * found["mail"]["acked_per_second"])
