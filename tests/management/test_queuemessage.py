"""`manage.py queuemessage`: one message, in every group."""

import json
import re

from sqlqueue import Delivery, Reject, Retry, publish
from sqlqueue.models import Message
from tests.consuming import Consuming
from tests.management.running import run
from tests.processes import wait_until


def test_how_it_stands_in_every_group(consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: {"url": "x" * 100}, keep_results=3600)

    @consuming.consumer("orders", group="mail")
    def handle(delivery: Delivery) -> None:
        raise Retry("not\x1b[31m yet", delay=3600)

    publish("orders", 1, id="r-1", key="a")
    consuming.drain()
    said = run("queuemessage", "orders", "--id", "r-1", "--key", "a")
    assert re.search(r"^default +acked +1 .*\{\"url\": \"x+…", said.out, re.MULTILINE)
    assert re.search(r"^mail +retrying +1 +20\d\d-", said.out, re.MULTILINE)
    assert "\x1b" not in said.out
    told = json.loads(run("queuemessage", "orders", "--id", "r-1", "--key", "a", "--json").out)
    assert told["groups"]["default"]["result"] == {"url": "x" * 100}
    assert told["groups"]["mail"]["state"] == "retrying"


def test_its_progress(consuming: Consuming) -> None:
    go = consuming.gate()

    @consuming.consumer("orders")
    def handle(delivery: Delivery) -> None:
        delivery.progress(3, 10, "pages")
        assert go.wait(60)

    publish("orders", 1, id="r-1")
    consuming.start()
    words = ("queuemessage", "orders", "--id", "r-1")
    wait_until(lambda: "3 of 10: pages" in run(*words).out)
    assert json.loads(run(*words, "--json").out)["groups"]["default"]["progress"]["total"] == 10


def test_one_that_is_scheduled(consuming: Consuming) -> None:
    publish("orders", 1, id="r-1", delay=3600)
    said = run("queuemessage", "orders", "--id", "r-1")
    assert "orders r-1 is scheduled" in said.out
    assert "No group is registered that gets it." in said.out


def test_one_that_is_unknown_is_an_error(consuming: Consuming) -> None:
    publish("orders", 1, id="r-1", key="a")
    for words in (["--id", "r-2"], ["--id", "r-1", "--key", "b"]):
        said = run("queuemessage", "orders", *words)
        assert (said.code, said.out) == (1, "")
        assert "it was never published, or" in said.err


def test_one_that_is_collected_is_found_by_its_result(consuming: Consuming) -> None:
    consuming.consumer("orders", lambda delivery: 7, keep_results=3600)
    publish("orders", 1, id="r-1", key="a")
    consuming.drain()
    Message.objects.all().delete()
    said = run("queuemessage", "orders", "--id", "r-1", "--key", "a")
    assert re.search("^default +acked +1 +7", said.out, re.MULTILINE)


def test_by_its_offset_with_its_whole_errors(consuming: Consuming) -> None:
    def fail(delivery: Delivery) -> None:
        raise OSError(f"no {delivery.payload}\x1b[31m")

    consuming.consumer("orders", fail, group="mail", backoff=3600)
    consuming.consumer("orders", fail, group="bill", max_attempts=1)
    offset = publish("orders", "paper", key="a").offset
    consuming.drain()
    said = run("queuemessage", "orders", "--offset", str(offset))
    assert f"of key 'a' at offset {offset}" in said.out
    for group in ("bill", "mail"):
        _, _, error = said.out.partition(f"The last error in group {group}:\n")
        assert error.startswith("Traceback (most recent call last):\n")
        assert "OSError: no paper" in error
    assert "\x1b" not in said.out
    [dead] = Message.objects.filter(topic="orders_dlq").values_list("offset", flat=True)
    said = run("queuemessage", "orders_dlq", "--offset", str(dead))
    assert "OSError: no paper" in said.out.partition("The error of this dead letter:")[2]
    told = json.loads(run("queuemessage", "orders", "--offset", str(offset), "--json").out)
    assert "OSError" in told["groups"]["mail"]["error"]


def test_by_an_offset_of_another_topic_or_of_none(consuming: Consuming) -> None:
    offset = publish("others", 1).offset
    for at, why in ((offset, "it is one of topic 'others'"), (offset + 1, "the log has none at it")):
        said = run("queuemessage", "orders", "--offset", str(at))
        assert (said.code, said.out) == (1, "")
        assert why in said.err


def test_options_that_do_not_go_together(consuming: Consuming) -> None:
    for words in ([], ["--id", "a", "--offset", "1"], ["--key", "a"]):
        assert run("queuemessage", "t", *words).code == 1


def test_a_dead_letter(consuming: Consuming) -> None:
    def fail(delivery: Delivery) -> None:
        raise Reject("closed")

    consuming.consumer("orders", fail, group="billing")
    publish("orders", 100, headers={"source": "test"})
    consuming.drain()
    letter = Message.objects.dead_letters().get()
    said = run("queuemessage", "orders", "--offset", letter.offset).out
    assert "failed_group: billing\nfailed_at: " in said
    assert "failure_count: 1\nfingerprint: closed\n" in said
    assert 'headers: {"source": "test"}\npayload: 100\n' in said
    told = json.loads(run("queuemessage", "orders", "--offset", letter.offset, "--json").out)
    assert (told["payload"], told["headers"], told["original_topic"]) == (100, {"source": "test"}, "orders")
