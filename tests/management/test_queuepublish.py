"""`manage.py queuepublish`: a payload, standard input, files."""

import json
from pathlib import Path

import pytest

from sqlqueue.models import Message, ScheduledMessage, Topic
from tests.consuming import Consuming
from tests.management.running import run


def test_a_payload(consuming: Consuming) -> None:
    words = ("--key", "customer-7", "--id", "order-1", "--header", "source=shell", "--header", "a=b=c")
    said = run("queuepublish", "orders", '{"number": 1}', *words)
    [message] = Message.objects.all()
    assert said.out == f"Published at offset {message.offset}, id order-1.\n"
    assert (message.payload, message.partition_key, message.headers) == (
        {"number": 1},
        "customer-7",
        {"source": "shell", "a": "b=c"},
    )
    again = run("queuepublish", "orders", "2", "--key", "customer-7", "--id", "order-1", "--json")
    assert json.loads(again.out) == {
        "offset": message.offset,
        "id": "order-1",
        "created": False,
        "status": "ignored",
    }


def test_standard_input(consuming: Consuming) -> None:
    assert run("queuepublish", "orders", stdin='["ä"]\n').code == 0
    assert run("queuepublish", "orders", "-", stdin="7").code == 0
    assert [message.payload for message in Message.objects.order_by("offset")] == [["ä"], 7]


def test_later(consuming: Consuming) -> None:
    assert "Scheduled in 60 s" in run("queuepublish", "orders", "1", "--delay", "60").out
    assert ScheduledMessage.objects.count() == 1
    assert not Message.objects.exists()


def test_at_a_time_and_in_place_of_another(consuming: Consuming) -> None:
    words = ("--id", "x", "--at", "2033-12-24T18:00:00+01:00")
    assert run("queuepublish", "orders", "1", *words).out == "Scheduled for 2033-12-24 18:00:00+01:00, id x.\n"
    assert "id x is scheduled already" in run("queuepublish", "orders", "2", *words).out
    said = run("queuepublish", "orders", "3", "--id", "x", "--delay", "60", "--on-conflict", "replace")
    assert said.out == "Scheduled in 60 s, id x. It has replaced the scheduled one.\n"
    assert ScheduledMessage.objects.get().payload == 3
    said = run("queuepublish", "orders", "4", "--id", "x", "--on-conflict", "replace", "--json")
    assert json.loads(said.out)["status"] == "updated"
    assert Message.objects.get().payload == 4


def test_a_file_says_when_each_is_due_and_what_it_replaces(consuming: Consuming) -> None:
    line = '{"payload": %d, "id": "x", "at": "2033-12-24T18:00:00Z", "on_conflict": "replace"}'
    assert "Published 1 messages." in run("queuepublish", "orders", "--messages", "-", stdin=line % 1).out
    said = run("queuepublish", "orders", "--messages", "-", stdin=f'{line % 2}\n{{"payload": 3, "id": "x"}}')
    assert said.out == "Published 0 messages (1 scheduled ones replaced, 1 were there already).\n"
    row = ScheduledMessage.objects.get()
    assert (row.payload, row.due_at.isoformat()) == (2, "2033-12-24T18:00:00+00:00")


def test_a_message_in_each_line(consuming: Consuming, tmp_path: Path) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("\n".join(json.dumps({"payload": number, "key": "k"}) for number in range(2_500)) + "\n\n")
    assert "2500 messages could be published" in run("queuepublish", "orders", "--messages", file, "--dry-run").out
    assert not Message.objects.exists()
    assert run("queuepublish", "orders", "--messages", file).out == "Published 2500 messages.\n"
    assert [message.payload for message in Message.objects.order_by("offset")] == list(range(2_500))
    assert set(Message.objects.values_list("partition_key", flat=True)) == {"k"}


def test_what_was_tailed_can_be_published_elsewhere(consuming: Consuming, tmp_path: Path) -> None:
    for number in range(3):
        run("queuepublish", "orders", number, "--key", f"k{number}", "--id", f"id-{number}", "--header", "h=1")
    lines = run("queuetail", "orders", "--from", "earliest", "--no-follow", "--json").out
    for expected in ((3, 3), (3, 0)):  # the second time the ids are known
        told = json.loads(run("queuepublish", "copies", "--messages", "-", "--json", stdin=lines).out)
        assert (told["read"], told["created"]) == expected
    columns = ("partition_key", "message_id", "payload", "headers")
    copies = Message.objects.filter(topic="copies").order_by("offset").values_list(*columns)
    assert list(copies) == list(Message.objects.filter(topic="orders").order_by("offset").values_list(*columns))


@pytest.mark.parametrize(
    ("words", "stdin", "said"),
    [
        (("hello",), "", "the payload is not JSON"),
        (("1", "--header", "x"), "", "--header takes NAME=VALUE"),
        (("1", "--priority", "3"), "", "priority 3 is not one of topic"),
        (("1", "--delay", "-3"), "", "argument --delay: '-3' is not a number from 0 to 315,360,000"),
        (("--messages", "/nowhere/at/all"), "", "/nowhere/at/all cannot be read"),
        (("--messages", "-"), '{"payload": 1}\n{\n', "line 2 is not JSON"),
        (("--messages", "-"), '{"payload": 1}\n2\n', "line 2 is not an object with a"),
        (("--messages", "-"), '{"body": null}\n', "line 1 is not an object with a"),
        (("--messages", "-"), '{"payload": 1, "keys": "a"}\n', "no member 'keys'. Did you mean 'key'?"),
        (("--messages", "-"), '{"payload": 1, "key": 5}\n', "key must be a string"),
        (("--messages", "-", "--id", "x"), "1", "leave the others out"),
        (("--messages", "-", "--id", ""), "1", "leave the others out"),
        (("--messages", "-", "--delay", "0"), "1", "leave the others out"),
        (("--messages", "-", "--priority", "0"), "1", "leave the others out"),
        (("--messages", "-", "--unique-for", "no"), "1", "leave the others out"),
        (("--messages", ""), '{"payload": 1}', "cannot be read"),
        (("--messages", "-", "--on-conflict", "replace"), "1", "leave the others out"),
        (("1", "--on-conflict", "replace"), "", "needs an id"),
        (("1", "--id", "x", "--on-conflict", "update"), "", "invalid choice"),
        (("1", "--at", "2033-12-24 18:00"), "", "argument --at: '2033-12-24 18:00' is not a time with a zone"),
        (("1", "--at", "soon"), "", "argument --at: 'soon' is not a time"),
        (("--messages", "-"), '{"payload": 1, "at": 5}', "line 1: at: '5' is not a time with a zone"),
        (("--messages", "-"), '{"payload": 1, "on_conflict": "replace"}', "needs an id"),
        (("1", "--key", "k" * 256), "", "key has 256 characters"),
        (("1", "--id", ""), "", "id is empty"),
        (("1", "--header", "h=" + "x" * 17_000_000), "", "MAX_PAYLOAD_BYTES"),
        (("--messages", "-"), '{"payload": 1, "id": "' + "i" * 256 + '"}', "id has 256 characters"),
        (("--messages", "-"), '{"payload": 1, "headers": [1]}', "headers must be"),
        (("--messages", "-"), '{"payload": 1, "priority": 1}', "priority 1 is not one of topic"),
        (("[" * 200_000 + "]" * 200_000,), "", "the payload is not JSON: maximum recursion depth"),
    ],
)
def test_what_cannot_be_is_refused_and_by_a_dry_run_too(
    consuming: Consuming, words: tuple[str, ...], stdin: str, said: str
) -> None:
    for more in (("--dry-run",), ()):
        refused = run("queuepublish", "orders", *words, *more, stdin=stdin)
        assert refused.code == 1
        assert said in refused.err
        assert not (Message.objects if not more else Topic.objects).exists(), "a dry run makes no topic"


def test_a_dry_run_makes_no_topic_and_knows_the_options_of_one(consuming: Consuming, settings) -> None:
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"urgent": {"priorities": 2}}}
    assert run("queuepublish", "urgent", "1", "--priority", "1", "--dry-run").code == 0
    assert run("queuepublish", "no name", "1", "--dry-run").code == 1
    assert not Topic.objects.exists()


def test_it_is_told_how_far_a_file_was_published(consuming: Consuming) -> None:
    lines = "\n".join(['{"payload": 1}'] * 1_500 + ["nonsense"])
    refused = run("queuepublish", "orders", "--messages", "-", stdin=lines)
    assert refused.code == 1
    assert "line 1501 is not JSON" in refused.err
    assert "The first 1000 messages are published." in refused.err
    assert Message.objects.count() == 1_000


def test_one_pending_message_of_a_key(consuming: Consuming, tmp_path: Path) -> None:
    words = ("queuepublish", "sync", "1", "--key", "a", "--unique-for")
    first = json.loads(run(*words, "key", "--json").out)
    again = run(*words, "3600").out
    assert again == f"There was nothing to do: id {first['id']} is at offset {first['offset']} already.\n"
    assert "Published at" in run(*words, "no").out
    lines = tmp_path / "lines"
    members = ({"unique_for": "key"}, {"unique_for": 60, "key": "b"}, {"unique_for": False})
    lines.write_text("\n".join(json.dumps({"payload": 4, "key": "a", **member}) for member in members))
    told = run("queuepublish", "sync", "--messages", str(lines)).out
    assert told == "Published 2 messages (1 were there already).\n"
    for wrong in ("keys", "0", "nan", ""):
        assert "--unique-for" in run(*words, wrong).err
    assert "needs a key" in run("queuepublish", "sync", "5", "--unique-for", "key").err
