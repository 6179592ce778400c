"""Payloads of bytes, and messages that expire, in the commands."""

import json
from pathlib import Path

import pytest

from sqlqueue import NewMessage, Reject, publish, publish_many
from sqlqueue.models import Message
from sqlqueue.testing import drain, published
from tests.consuming import Consuming
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)

CONTENT = bytes(range(256))
ALL = ("--from", "earliest", "--no-follow")


def test_the_bytes_of_a_file_are_published(consuming: Consuming, tmp_path: Path) -> None:
    file = tmp_path / "x.pdf"
    file.write_bytes(CONTENT)
    assert run("queuepublish", "files", "--file", file, "--content-type", "application/pdf", "--key", "k").code == 0
    (message,) = published("files")
    assert (message.payload, message.content_type, message.key) == (CONTENT, "application/pdf", "k")
    assert "1 message" not in run("queuepublish", "files", "--file", file, "--dry-run").out
    assert len(published("files")) == 1


def test_a_message_expires(consuming: Consuming) -> None:
    assert run("queuepublish", "files", "1", "--expires", "60").code == 0
    message = Message.objects.get()
    assert message.expires_at is not None
    assert 50 <= (message.expires_at - message.created_at).total_seconds() <= 70
    assert run("queuepublish", "files", "1", "--expires", "60", "--delay", "9").code == 0


def test_what_queuetail_tells_queuepublish_publishes(consuming: Consuming) -> None:
    publish_many(
        "files",
        [
            NewMessage(CONTENT, content_type="a/b", key="k", headers={"h": 1}, expires=60),
            NewMessage(b"", key="k"),
            NewMessage({"n": 1}, key="k"),
        ],
    )
    lines = run("queuetail", "files", *ALL, "--json").out
    assert run("queuepublish", "copies", "--messages", "-", stdin=lines).code == 0
    parts = [
        [(one.payload, one.content_type, one.headers) for one in published(topic)] for topic in ("files", "copies")
    ]
    assert parts[0] == parts[1]
    assert parts[1][0] == (CONTENT, "a/b", {"h": 1})
    assert "<256 bytes, a/b>" in run("queuetail", "files", *ALL).out


def test_a_dead_letter_of_bytes_is_shown_by_type_and_size(consuming: Consuming) -> None:
    def reject(delivery: object) -> None:
        raise Reject("broken")

    consuming.consumer("files", reject)
    publish("files", CONTENT, content_type="a/b")
    publish("files", 1, expires=0.001)
    drain()
    first, last = Message.objects.dead_letters().order_by("offset")
    of_bytes = first if first.body is not None else last
    told = json.loads(run("queuemessage", "files", "--offset", of_bytes.offset, "--json").out)
    assert told["payload"] == {"bytes": 256, "content_type": "a/b"}
    assert '"bytes": 256' in run("queuemessage", "files", "--offset", of_bytes.offset).out
    assert "expired" in run("queuedlq", "list").out


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("1", "--file", "x"), "", "give a payload or --file, not both"),
        (("--file", "/nowhere/at/all"), "", "/nowhere/at/all cannot be read"),
        (("1", "--content-type", "a/b"), "", "content_type is for a payload of bytes"),
        (("--messages", "-", "--file", "x"), "1", "leave the others out"),
        (("--messages", "-", "--expires", "1"), "1", "leave the others out"),
        (("1", "--expires", "0"), "", "argument --expires"),
        (("--messages", "-"), '{"body": "%%"}', 'line 1: "body" is not base64'),
        (("--messages", "-"), '{"body": 5}', 'line 1: "body" is not base64'),
        (("--messages", "-"), '{"body": "QQ==", "payload": 1}', 'has a "payload" and a "body"'),
        (("--messages", "-"), '{"body": "QQ==", "content_type": "x"}', "content_type must be like"),
        (("--messages", "-"), '{"payload": 1, "expires": -1}', "expires must"),
    ],
)
def test_what_cannot_be_is_refused(consuming: Consuming, words: tuple[str, ...], stdin: str, said: str) -> None:
    refused = run("queuepublish", "files", *words, stdin=stdin)
    assert refused.code == 1
    assert said in refused.err
    assert not Message.objects.exists()
