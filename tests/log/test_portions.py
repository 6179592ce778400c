"""Reads whose payloads and headers keep within so many bytes, whatever the messages have."""

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue import NewMessage, publish_many
from sqlqueue.core.filters import Filter
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Found, Read
from sqlqueue.log import messages as messages_module
from sqlqueue.log.fetch import fetch
from sqlqueue.log.messages import Asked, gather
from sqlqueue.log.sift import sift
from sqlqueue.models import Message
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

REF = PartitionRef("g", "t", 0)
SIZE = 100_000
# Light ones, heavy ones behind them, one that is too heavy by itself, and the same in headers and as bytes; some of one
# letter, which PostgreSQL compresses.
CONTENTS: list[NewMessage] = [
    *[NewMessage("x" * 300) for _ in range(20)],
    *[NewMessage("x" * 40_000) for _ in range(4)],
    NewMessage("x" * 250_000),
    *[NewMessage(n) for n in range(3)],
    *[NewMessage(None, headers={"long": "y" * 60_000}) for _ in range(2)],
    *[NewMessage(b"\0\xff" * 35_000) for _ in range(2)],
    *[NewMessage([str(number * 7919) for number in range(6_000)]) for _ in range(2)],
    *[NewMessage("last") for _ in range(5)],
]


@pytest.fixture(autouse=True)
def log(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1}
    publish_many("t", CONTENTS)


def everything() -> list[tuple[Any, ...]]:
    (found,) = fetch(LOG, [(REF, Read(0, len(CONTENTS)))])
    return [message[:10] for message in found.messages]


def walked(read: Any) -> list[Found]:
    """Read the log step by step, as many messages at a time as are left."""
    steps: list[Found] = []
    start = 0
    while True:
        step = read(start)
        steps.append(step)
        assert step.cut or step.total in (0, len(CONTENTS) - sum(each.total for each in steps[:-1]))
        if not step.cut:
            return steps
        start = step.last


def test_a_read_brings_what_fits_and_says_that_there_is_more() -> None:
    steps = walked(lambda start: fetch(LOG, [(REF, Read(start, len(CONTENTS), size=SIZE))])[0])
    assert [message[:10] for step in steps for message in step.messages] == everything()
    sizes = [[message.size for message in step.messages] for step in steps]
    assert all(sum(each) <= SIZE or len(each) == 1 for each in sizes), sizes
    assert max(map(len, sizes)) >= 20


def test_more_heavy_messages_than_are_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages_module, "SIZED_AT_ONCE", 1)
    steps = walked(lambda start: fetch(LOG, [(REF, Read(start, len(CONTENTS), size=SIZE))])[0])
    assert [message[:10] for step in steps for message in step.messages] == everything()
    heavy = [sum(message.size > SIZE // len(CONTENTS) for message in step.messages) for step in steps]
    assert max(heavy) == 1


def of_log(seen: CaptureQueriesContext) -> int:
    return len([each for each in seen.captured_queries if "sqlqueue_message" in each["sql"]])


def test_light_messages_take_one_statement() -> None:
    with CaptureQueriesContext(connection) as seen:
        fetch(LOG, [(REF, Read(0, 20, size=SIZE))])
    assert of_log(seen) == 1


def test_one_message_at_a_time_takes_one_statement_however_heavy_it_is() -> None:
    offset = Message.objects.order_by("offset").values_list("offset", flat=True)[23]
    with CaptureQueriesContext(connection) as seen:
        (found,) = fetch(LOG, [(REF, Read(offset, 1, size=1))])
    assert [message.size for message in found.messages] == [250_002]
    assert of_log(seen) == 1


def test_the_partitions_of_one_read_keep_within_their_own_bytes(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 2}
    publish_many("two", [NewMessage("z" * 50_000, key=key) for key in "abcdefgh"])
    refs = [PartitionRef("g", "two", number) for number in range(2)]
    found = fetch(LOG, [(ref, Read(0, 8, size=SIZE)) for ref in refs])
    counts = [Message.objects.filter(topic="two", partition=number).count() for number in range(2)]
    assert [len(one.messages) for one in found] == [min(1, count) for count in counts]
    assert [one.cut for one in found] == [count > 1 for count in counts]


def test_what_is_deleted_before_it_is_read_by_itself_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    heavy = list(Message.objects.order_by("offset").values_list("offset", flat=True)[20:22])
    load_whole = messages_module.load_whole

    def delete_first(*values: Any) -> Any:
        Message.objects.filter(offset__in=heavy).delete()
        return load_whole(*values)

    monkeypatch.setattr(messages_module, "load_whole", delete_first)
    (found,) = fetch(LOG, [(REF, Read(0, 22, size=SIZE))])
    assert (len(found.messages), found.gone, found.total, found.last) == (20, heavy, 22, heavy[-1])
    assert not found.cut


@pytest.mark.parametrize(
    "where", [{"payload__exists": True}, {"headers.long__exists": True}, {"key": ""}, {"key": "none"}]
)
def test_a_filter_finds_the_same_within_the_bytes(where: dict[str, object]) -> None:
    filters = Filter(where)
    (expected,) = sift(LOG, [(REF, Read(0, len(CONTENTS), sift=filters))])
    steps = walked(lambda start: sift(LOG, [(REF, Read(start, len(CONTENTS), size=SIZE, sift=filters))])[0])
    assert [m[:10] for step in steps for m in step.messages] == [m[:10] for m in expected.messages]
    assert [row[0] for step in steps for row in step.left_out] == [row[0] for row in expected.left_out]
    sizes = [[message.size for message in step.messages] for step in steps]
    assert all(sum(each) <= SIZE or len(each) == 1 for each in sizes), sizes


def test_messages_that_are_loaded_by_their_offsets_keep_within_the_bytes() -> None:
    left = list(Message.objects.order_by("offset").values_list("offset", flat=True))
    loaded: list[tuple[Any, ...]] = []
    while left:
        ((found, count),) = gather(LOG, [Asked(REF, left, SIZE)])
        messages = [message for _, message in found.values()]
        assert sum(message.size for message in messages) <= SIZE or len(messages) == 1
        loaded += [message[:10] for message in messages]
        left = left[count:]
    assert sorted(loaded) == sorted(everything())
