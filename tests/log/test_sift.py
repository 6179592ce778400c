"""What a filter leaves out by what is read of each message is what it leaves out of whole ones, as each database gives
its JSON."""

import json
import random
from typing import Any

import pytest

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.core.filters import Filter
from sqlqueue.core.partition.ref import PartitionRef
from sqlqueue.core.partition.window import Read
from sqlqueue.core.settle_plan import FetchedMessage
from sqlqueue.log import sift as sift_module
from sqlqueue.log.fetch import fetch
from sqlqueue.log.sift import sift
from sqlqueue.models import Message
from tests.json_texts import condition, json_text
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

MESSAGES, FILTERS = 150, 150
REF = PartitionRef("g", "t", 0)


@pytest.fixture(autouse=True)
def one_partition(settings: Any) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1}


def as_values(message: FetchedMessage) -> FetchedMessage:
    """Return a message with its JSON as values, in which no text is looked for."""
    payload, headers = (json.loads(one) if isinstance(one, str) else one for one in (message.payload, message.headers))
    return message._replace(payload=payload, headers=headers)


def test_it_finds_what_matches_whole() -> None:
    draw = random.Random(22).choice
    publish_many("t", [NewMessage({}, key=f"k{n % 3}", id=f"n{n}", headers={"n": n % 7}) for n in range(MESSAGES)])
    for offset in Message.objects.values_list("offset", flat=True):
        LOG.execute('UPDATE sqlqueue_message SET payload = %s WHERE "offset" = %s', (json_text(draw), offset))
    publish("t", b"bytes", key="k1", headers={"n": 1})
    publish("t", None, key="k1")
    (everything,) = fetch(LOG, [(REF, Read(0, 2 * MESSAGES))])
    whole = {message.offset: message for message in everything.messages}
    conditions = [condition(draw) for _ in range(FILTERS)]
    conditions += [{**condition(draw), "key": "k1", "headers.n__lt": 4} for _ in range(FILTERS // 5)]
    conditions += [{"payload": None}, {"payload__exists": False}]
    matched = 0
    for each in conditions:
        where = Filter(each)
        (found,) = sift(LOG, [(REF, Read(0, 2 * MESSAGES, sift=where))])
        expected = [message for message in whole.values() if where.matches(as_values(message))]
        assert [one[:10] for one in found.messages] == [one[:10] for one in expected], each
        assert [row[0] for row in found.left_out] == sorted(whole.keys() - {one.offset for one in expected}), each
        matched += len(expected)
    assert matched > FILTERS, "the filters are not beside the payloads"


def test_what_was_deleted_between_the_two_statements_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    publish_many("t", [NewMessage(n, headers={"wanted": n != 1}) for n in range(4)])
    first, second, third, fourth = Message.objects.order_by("offset").values_list("offset", flat=True)
    read_whole = sift_module.messages_at

    def delete_first(*values: Any) -> Any:
        Message.objects.filter(offset__in=[third, fourth]).delete()
        return read_whole(*values)

    monkeypatch.setattr(sift_module, "messages_at", delete_first)
    (found,) = sift(LOG, [(REF, Read(0, 4, sift=Filter({"headers.wanted": True})))])
    assert [message.offset for message in found.messages] == [first]
    assert ([row[0] for row in found.left_out], found.gone) == ([second], [third, fourth])
    assert (found.total, found.last) == (4, fourth), "the next read goes on behind it"
