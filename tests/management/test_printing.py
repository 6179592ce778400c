"""What commands print of messages is data: a terminal obeys none of it, and none of it looks like another line."""

import json
import logging
from typing import Any

import pytest
from django.db import connection

from sqlqueue import Delivery, publish, testing
from sqlqueue.core.logfmt import printable
from sqlqueue.models import Message, Request
from sqlqueue.operations.replay_requests import request_replay
from tests.consuming import Consuming
from tests.factories import ResultFactory
from tests.logs import LOG
from tests.management.running import run

# A new line, ESC (a title, a clear screen), BEL, CR, DEL, CSI of C1, and what turns the direction of writing.
EVIL = "k\n1 forged\x1b]0;owned\x07\x1b[2J\r\x7f\x9b31m\u202e\u2066"


def harmless(text: str) -> bool:
    return all(one.isprintable() or one == "\n" for one in text)


@pytest.fixture
def letter(consuming: Consuming) -> Message:
    """A dead letter whose key, id, payload, headers and error are evil."""

    @consuming.consumer("t", group="g", max_attempts=1)
    def handle(delivery: Delivery) -> None:
        raise ValueError(EVIL)

    publish("t", {EVIL: EVIL}, key=EVIL, id=EVIL, headers={EVIL: EVIL})
    testing.drain()
    return Message.objects.dead_letters().get()


def test_a_text_keeps_what_can_be_printed_and_shows_the_rest() -> None:
    assert printable("Grüße ✈ \u4f60") == "Grüße ✈ \u4f60"
    assert printable("a\n\x1b\x7f\x9b\u202e\ud800") == r"a\n\u001b\u007f\u009b\u202e\ud800"
    assert printable("a\n\tb", keep="\n") == "a\n\\tb"
    assert json.loads(printable(json.dumps({"k": EVIL}, ensure_ascii=False))) == {"k": EVIL}


def test_queuetail(letter: Message) -> None:
    said = run("queuetail", "t", "--from", "earliest", "--no-follow")
    assert harmless(said.out)
    assert said.out.count("\n") == 1
    assert json.loads(run("queuetail", "t", "--from", "earliest", "--no-follow", "--json").out)["key"] == EVIL


@pytest.mark.parametrize("words", [["queuedlq", "list"], ["queuemessage", "t"], ["queuerequests", "list"]])
@pytest.mark.parametrize("json", [False, True])
def test_dead_letters(letter: Message, words: list[str], json: bool) -> None:
    request_replay(LOG, "t")
    Request.objects.update(note=EVIL[:200], ordered_by=EVIL[:100], options={"fingerprint": EVIL})
    Message.objects.filter(pk=letter.pk).update(fingerprint=EVIL)
    more = [*(["--offset", letter.offset] if "t" in words else []), *(["--json"] if json else [])]
    said = run(*words, *more)
    assert said.code == 0
    assert harmless(said.out + said.err)
    assert "owned" in said.out


def test_what_a_command_refuses_and_asks(letter: Message) -> None:
    for words in (["queuetail", EVIL], ["queuedlq", "replay", "t", "--fingerprint", EVIL], ["queuepublish", EVIL, "1"]):
        said = run(*words)
        assert said.code == 1
        assert harmless(said.out + said.err)


@pytest.mark.parametrize("command", ["queuestatus", "queuedoctor"])
def test_what_tells_of_all(letter: Message, command: str) -> None:
    assert harmless(run(command).out)


def test_the_logs_of_consumers(letter: Message, consuming: Consuming, caplog: pytest.LogCaptureFixture) -> None:
    @consuming.consumer("u")
    def handle(delivery: Delivery) -> None:
        raise ValueError(EVIL)

    publish("u", EVIL, key=EVIL, id=EVIL)
    with caplog.at_level(logging.DEBUG, "sqlqueue"):
        testing.drain()
    assert "owned" in caplog.text
    assert harmless("".join(record.getMessage() for record in caplog.records))


def test_what_plain_sql_has_put_in_is_shown_all_the_same(letter: Message) -> None:
    try:
        with connection.cursor() as cursor:
            text = "UPDATE sqlqueue_message SET payload = %s"
            cursor.execute(text, ['["\\ud83d", 1e999]'])
    except Exception as error:
        pytest.skip(f"{connection.display_name} has no such JSON: {error}")
    for words in (
        ["queuetail", "t", "--from", "earliest", "--no-follow"],
        ["queuemessage", "t", "--offset", letter.offset],
    ):
        said = run(*words)
        assert (said.code, harmless(said.out), r"\ud83d" in said.out) == (0, True, True)


def test_a_deeply_nested_result_is_printed_as_long_as_it_is(consuming: Consuming) -> None:
    consuming.consumer("t", lambda delivery: None, group="g")
    published = publish("t", 1, id="deep")
    consuming.drain()
    value: Any = [1] * 20_000
    for _ in range(30):
        value = [value]
    ResultFactory(message_id="deep", message_offset=published.offset, result=value)
    said = run("queuemessage", "t", "--id", "deep", "--json")
    assert json.loads(said.out)["groups"]["g"]["result"] == value
    assert len(said.out) < 100_000
