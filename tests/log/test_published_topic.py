"""What a publisher may give: a message that is accepted comes back equal, and one that is refused is nowhere."""

from datetime import datetime, timezone
from typing import Any

import pytest
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlqueue import ConfigurationError, InvalidMessage, NewMessage, publish, publish_many
from sqlqueue.core.keys import KEY_LENGTH
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.payloads.versions import CONTENT_TYPE

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


@pytest.mark.django_db(transaction=True)
@given(PAYLOADS, KEYS, st.fixed_dictionaries({}, optional=OPTIONS))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_message_that_is_accepted_comes_back_equal(payload: Any, key: Any, options: dict[str, Any]) -> None:
    Message.objects.all().delete()
    ScheduledMessage.objects.all().delete()
    try:
        published = publish("t", payload, key=key, **options)
    except (InvalidMessage, ConfigurationError):
        assert not Message.objects.exists()
        assert not ScheduledMessage.objects.exists()
        return
    (found,) = [*Message.objects.all(), *ScheduledMessage.objects.all()]
    assert (found.message_id, found.partition_key, found.priority) == (published.id, key, options.get("priority", 0))
    assert found.target_group == (options.get("group") or "")
    if isinstance(payload, (bytes, bytearray)):
        assert bytes(found.body or b"") == payload
    else:
        assert (found.payload, found.body) == (payload, None)
    headers = {name: value for name, value in (found.headers or {}).items() if name != CONTENT_TYPE}
    assert headers == (options.get("headers") or {})


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
