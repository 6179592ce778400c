"""acknowledge(): a group never gets these messages (again), by their ids, their key, or their offsets."""

from typing import Any

import pytest

from sqlqueue import ConfigurationError, Delivery, InvalidMessage, NewMessage, Retry, acknowledge, publish, publish_many
from sqlqueue.log.groups import register
from sqlqueue.models import DeliveryState, Message
from sqlqueue.operations import messages as module
from sqlqueue.operations.messages import preview
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until


@pytest.fixture
def seen(consuming: Consuming) -> list[Any]:
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="g")
    consuming.consumer("t", lambda delivery: None, group="other")
    for group in ("g", "other"):
        register(LOG, group, "t")
    keyed = [NewMessage(n, key=f"k{n % 3}", id=f"i{n}") for n in range(9)]
    publish_many("t", [*keyed, NewMessage("no key", id="i0")])
    return seen


def offsets(*payloads: Any) -> list[int]:
    return [row.offset for row in Message.objects.filter(topic="t") if row.payload in payloads]


@pytest.mark.parametrize(
    ("which", "gone"),
    [
        ({"key": "k1"}, {1, 4, 7}),
        ({"ids": ["i1", "i4", "i2", "none"], "key": "k1"}, {1, 4}),
        ({"ids": iter(["i0"])}, {"no key"}),
        ({"ids": []}, set()),
        ({"key": "none"}, set()),
    ],
)
def test_the_group_does_not_get_them_and_others_do(
    consuming: Consuming, seen: list[Any], which: dict[str, Any], gone: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    monkeypatch.setattr(module, "READ_AT_ONCE", 2)
    if isinstance(which.get("ids"), list):
        assert preview("t", "g", **which) == len(gone)
    assert acknowledge("t", "g", **which) == len(gone)
    consuming.drain()
    assert set(seen) == {*range(9), "no key"} - gone


def test_by_offsets(consuming: Consuming, seen: list[Any]) -> None:
    some = offsets(3, "no key")
    assert preview("t", "g", offsets=[*some, 10**9]) == 2
    assert acknowledge("t", "g", offsets=[*some, 10**9]) == 2
    assert acknowledge("t", "g", offsets=some) == 0  # they are settled
    consuming.drain()
    assert set(seen) == {0, 1, 2, 4, 5, 6, 7, 8}


def test_what_failed_is_acked_while_its_consumers_run_and_what_is_in_flight_is_left(consuming: Consuming) -> None:
    seen: list[Any] = []

    @consuming.consumer("t", group="g")
    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload == "fails":
            raise Retry(delay=3600)
        if delivery.payload == "hangs":
            wait_until(lambda: "end" in seen)

    publish("t", "fails", key="k", id="1")
    publish("t", "hangs", key="k", id="2")
    consuming.start()
    wait_until(lambda: DeliveryState.objects.filter(retry_count=1, in_flight=0).exists())
    assert acknowledge("t", "g", ids=["1"], key="k") == 1
    wait_until(lambda: "hangs" in seen, message="the key stays blocked")
    wait_until(lambda: not DeliveryState.objects.filter(acked=False, in_flight=0).exists())
    assert acknowledge("t", "g", key="k") == 0
    seen.append("end")


@pytest.mark.parametrize(
    ("which", "said"),
    [
        ({}, "say which messages"),
        ({"ids": ["a"], "offsets": [1]}, "leave ids and key out"),
        ({"key": "k", "offsets": [1]}, "leave ids and key out"),
        ({"ids": "abc"}, r"write ids=\[id\]"),
    ],
)
def test_one_of_three_says_which(seen: list[Any], which: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        acknowledge("t", "g", **which)


def test_what_no_message_can_have_is_refused(seen: list[Any]) -> None:
    with pytest.raises(ConfigurationError, match="there is no group 'none' in topic 't'"):
        acknowledge("t", "none", key="k")
    with pytest.raises(InvalidMessage):
        acknowledge("t", "g", key="k" * 256)
    with pytest.raises(InvalidMessage):
        acknowledge("t", "g", ids=["i" * 300])
