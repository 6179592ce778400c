"""A message with no more than a key is checked at less cost: it becomes the row that the whole check makes of it, and
what that refuses is refused in the same words."""

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlqueue import InvalidMessage, NewMessage, publish, publish_many
from sqlqueue.core.keys import KEY_LENGTH
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.database.validation import TopicInfo
from sqlqueue.log.offers import OfferMaker
from sqlqueue.models import Message
from tests.logs import LOG

PLAIN = TopicInfo("t", 7, 2)
KEYS = st.sampled_from(["", "a", "k" * KEY_LENGTH, "k" * (KEY_LENGTH + 1), "ö", "\0", "a\0", "\ud800", 7, None, b"a"])
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.characters(codec=None)
DEEP: Any = 1
for _ in range(40):
    DEEP = [DEEP]
PAYLOADS = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5) | (
    st.sampled_from([DEEP, "\0", ["\x01"], "x" * 9_000, "ö" * 9_000, b"bytes", bytearray(b""), (1,), {1: 2}, {1, 2}])
)
OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "id": st.sampled_from([None, "a", "", 7]),
    "headers": st.sampled_from([None, {}, {"a": 1}, {1: 2}, {"sqlqueue-x": 1}, 7]),
    "priority": st.sampled_from([0, 1, 2, -1, "1"]),
    "delay": st.sampled_from([None, 0, 1, -1, "x"]),
    "at": st.sampled_from([None, datetime(2030, 1, 1, tzinfo=timezone.utc), datetime(2030, 1, 1), 7]),  # noqa: DTZ001  to be refused
    "group": st.sampled_from(["", "g", "no name", None]),
    "on_conflict": st.sampled_from([None, "ignore", "replace", "x"]),
    "content_type": st.sampled_from([None, "text/plain", 7]),
    "expires": st.sampled_from([None, 5, -1, "x"]),
    "unique_for": st.sampled_from([None, "key", 5, False, "x"]),
}


def said_of(check: Callable[[NewMessage, Any], Any], message: NewMessage) -> Any:
    """Return what a check returns, or why it refuses."""
    try:
        return check(message, message.headers)
    except InvalidMessage as error:
        return str(error)


def row_of(maker: OfferMaker, message: NewMessage) -> LogRow | str:
    """Return what the whole check makes of a message: its row, or why it is refused."""
    offer = said_of(maker.offer, message)
    if isinstance(offer, str):
        return offer
    plain = (offer.named, offer.replace, offer.scheduled, offer.unique_for) == (False, False, False, None)
    return offer.message.row if plain else "more than a row"


def without_id(row: LogRow) -> LogRow:
    return row._replace(id="", partition=row.partition if row.key else 0)


@pytest.mark.django_db
@given(PAYLOADS, KEYS, st.fixed_dictionaries({}, optional=OPTIONS))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_plain_row_is_that_of_the_whole_check(payload: Any, key: Any, options: dict[str, Any]) -> None:
    maker, message = OfferMaker(LOG, PLAIN), NewMessage(payload, key=key, **options)
    row = said_of(maker.plain_row, message)
    if row is None:
        return
    whole = row_of(maker, message)
    if isinstance(row, str):
        assert row == whole
        return
    assert isinstance(whole, LogRow)
    assert without_id(row) == without_id(whole)


def test_what_most_messages_are_is_plain() -> None:
    maker = OfferMaker(LOG, PLAIN)
    for message in (NewMessage({"a": [1, None, "ö"]}, key="a"), NewMessage(1), NewMessage("x" * 300, key="k" * 255)):
        assert isinstance(maker.plain_row(message, None), LogRow)


@pytest.mark.parametrize(
    "option",
    [
        {"id": "a"},
        {"headers": {"a": 1}},
        {"priority": 1},
        {"delay": 1},
        {"at": datetime(2030, 1, 1, tzinfo=timezone.utc)},
        {"group": "g"},
        {"on_conflict": "ignore"},
        {"content_type": "text/plain"},
        {"expires": 1},
        {"unique_for": "key"},
        {"key": "\0"},
        {"key": "k" * (KEY_LENGTH + 1)},
        {"payload": b"bytes"},
        {"payload": "\0"},
        {"payload": DEEP},
        {"payload": "x" * 9_000},
    ],
    ids=str,
)
def test_what_has_more_is_not(option: dict[str, Any]) -> None:
    message = NewMessage(**{"payload": 1, **option})
    assert OfferMaker(LOG, PLAIN).plain_row(message, message.headers) is None


def test_a_member_of_a_batch_is_not() -> None:
    message = NewMessage(1)
    message.batch = "b"
    assert OfferMaker(LOG, PLAIN).plain_row(message, None) is None


@pytest.mark.parametrize("option", [{"payload_version": 2}, {"payload_type": int}, {"unique_for": "key"}], ids=str)
@pytest.mark.django_db
def test_nor_are_those_of_a_topic_with_an_option_for_its_messages(option: dict[str, Any]) -> None:
    with override_settings(SQLQUEUE={"TOPICS": {"t": option}}):
        assert OfferMaker(LOG, PLAIN).plain_row(NewMessage(1, key="a"), None) is None


@pytest.mark.django_db(transaction=True)
def test_a_setting_that_changes_holds_for_the_next_message() -> None:
    publish("t", "x" * 100)
    with override_settings(SQLQUEUE={"MAX_PAYLOAD_BYTES": 50, "STRICT_TOPICS": False}):
        with pytest.raises(InvalidMessage, match="50 is the most"):
            publish("t", "x" * 100)
        with pytest.raises(InvalidMessage, match="50 is the most"):
            publish_many("t", ["x" * 100])
    publish("t", "x" * 100)
    assert Message.objects.count() == 2


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("given_as", [list, iter], ids=["a list", "an iterator"])
def test_plain_ones_and_others_keep_their_order(given_as: Any) -> None:
    publish("t", 0, id="a")
    messages = [NewMessage(1), NewMessage(2, id="a"), NewMessage(3, headers={"n": 3}), NewMessage(4, delay=1000), 5]
    published = publish_many("t", given_as(messages))
    assert (published.created, published.ignored) == (4, 1)
    if published.ids is not None:
        assert published.statuses == ["created", "ignored", "created", "created", "created"]
        assert published.ids[1] == "a"
        assert list(Message.objects.order_by("offset").values_list("message_id", flat=True)) == [
            "a",
            *(published.ids[index] for index in (0, 2, 4)),
        ]
    assert [message.payload for message in Message.objects.order_by("offset")] == [0, 1, 3, 5]
