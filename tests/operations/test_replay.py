"""Replay: dead letters are delivered again, to the group that they died for, once each."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue import ConfigurationError, Delivery, Reject, discard, publish, replay
from sqlqueue.core.outcomes import LENGTH
from sqlqueue.log import groups
from sqlqueue.models import Message
from sqlqueue.operations import replay as replay_module
from sqlqueue.operations.replay import OFFSETS_AT_ONCE
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.operations.requests import carry_out
from sqlqueue.stats.dead_letters import failures
from tests.consuming import Consuming
from tests.logs import LOG
from tests.transactions import OpenTransaction


class Patient:
    """Two groups that reject everything until they are cured."""

    def __init__(self, consuming: Consuming) -> None:
        self.seen: list[tuple[str, object, int]] = []
        self.cured = False
        for group in ("one", "two"):
            consuming.consumer("t", self.handle, group=group)

    def handle(self, delivery) -> None:
        self.seen.append((delivery.group, delivery.payload, delivery.attempt))
        if not self.cured:
            raise Reject("not cured")


@pytest.fixture
def patient(consuming: Consuming) -> Patient:
    """Three messages that have died for two groups each."""
    patient = Patient(consuming)
    for number in range(3):
        publish("t", number, key=f"k{number}", headers={"n": number}, id=f"x{number}")
    consuming.drain()
    assert Message.objects.dead_letters().count() == 6
    patient.seen.clear()
    patient.cured = True
    return patient


def test_each_goes_to_its_own_group_once(consuming: Consuming, patient: Patient) -> None:
    assert replay("t") == 6
    assert replay("t") == 0
    consuming.drain()
    consuming.drain()
    assert sorted(patient.seen) == [(group, number, 1) for group in ("one", "two") for number in range(3)]
    assert Message.objects.dead_letters().count() == 0


def test_of_a_topic_that_is_not_there_are_none(transactional_db: None) -> None:
    assert replay("nowhere") == 0


def test_of_one_group_leaves_the_dead_letters_of_others(consuming: Consuming, patient: Patient) -> None:
    assert replay("t", group="one") == 3
    consuming.drain()
    assert sorted(patient.seen) == [("one", number, 1) for number in range(3)]
    assert Message.objects.dead_letters("two").count() == 3


def test_at_most_so_many_the_oldest_first(consuming: Consuming, patient: Patient) -> None:
    oldest = list(Message.objects.dead_letters().order_by("offset").values_list("failed_group", "payload")[:4])
    assert replay("t", limit=4) == 4
    consuming.drain()
    assert sorted((group, payload) for group, payload, _ in patient.seen) == sorted(oldest)


@pytest.mark.database("mariadb", "mysql", "postgresql")
def test_it_waits_for_no_dead_letter_that_is_locked(consuming: Consuming, patient: Patient) -> None:
    locked = Message.objects.dead_letters().order_by("offset")[1].offset

    def replaying_elsewhere() -> int:
        try:
            return replay("t")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool, OpenTransaction() as other:
        other.do(lambda: Message.objects.select_for_update().get(offset=locked))
        assert pool.submit(replaying_elsewhere).result(30) == 5
    assert replay("t") == 1


def test_key_headers_and_payload_are_the_same(consuming: Consuming, patient: Patient) -> None:
    replay("t", group="one")
    for message in Message.objects.filter(topic="t").exclude(target_group=""):
        original = Message.objects.get(topic="t", message_id=f"x{message.payload}")
        assert (message.partition_key, message.partition) == (original.partition_key, original.partition)
        assert (message.headers, message.target_group) == (original.headers, "one")


def test_of_a_failure_that_is_told_at_length(consuming: Consuming) -> None:
    seen: list[object] = []
    reason = "no account " * LENGTH

    @consuming.consumer("t")
    def handle(delivery: Delivery) -> None:
        if delivery.payload == "first" and not seen:
            raise Reject(reason)
        seen.append(delivery.payload)

    publish("t", "first", key="a")
    publish("t", "second", key="a")
    consuming.drain()
    dead_letter = Message.objects.dead_letters().get()
    assert dead_letter.last_error == reason.strip() or dead_letter.last_error == reason
    (kind,) = failures(LOG, ["t"]).kinds
    assert (kind.dead_letters, kind.error) == (1, dead_letter.last_error)
    assert replay("t", fingerprint=kind.fingerprint) == 1
    consuming.drain()
    assert seen == ["second", "first"]


def test_what_dies_again_can_be_replayed_again(consuming: Consuming, patient: Patient) -> None:
    patient.cured = False
    assert replay("t", group="one") == 3
    consuming.drain()
    assert Message.objects.dead_letters("one").count() == 3
    patient.cured = True
    patient.seen.clear()
    assert replay("t", group="one") == 3
    consuming.drain()
    assert sorted(patient.seen) == [("one", number, 1) for number in range(3)]


def test_discarding_deletes_for_good(consuming: Consuming, patient: Patient) -> None:
    chosen = Message.objects.dead_letters("one").values_list("offset", flat=True)[0]
    assert discard("t", offsets=[chosen]) == 1
    assert discard("t", group="one") == 2
    assert Message.objects.dead_letters("two").count() == 3
    assert discard("t") == 3
    assert replay("t") == 0
    consuming.drain()
    assert patient.seen == []
    assert Message.objects.filter(topic="t").count() == 3


def test_no_more_is_discarded_than_was_meant(patient: Patient) -> None:
    first, second, *others = Message.objects.dead_letters().order_by("offset").values_list("offset", flat=True)
    assert discard("t", limit=1) == 1
    assert discard("t", through=second, limit=5) == 1
    assert discard("t", through=second) == 0
    assert discard("t", limit=0) == 0
    assert list(Message.objects.dead_letters().order_by("offset").values_list("offset", flat=True)) == others
    assert first < second < others[0]


@pytest.mark.parametrize(("meant", "other"), [("unknown sku ab", "unknown SKU AB"), ("Muller fehlt", "Müller fehlt")])
def test_only_failures_with_exactly_the_same_fingerprint_are_meant(
    consuming: Consuming, meant: str, other: str
) -> None:
    def reject(delivery) -> None:
        raise Reject(delivery.payload)

    consuming.consumer("t", reject)
    for text in (meant, other):
        publish("t", text)
    consuming.drain()
    assert discard("t", fingerprint=meant) == 1
    assert [dead_letter.payload for dead_letter in Message.objects.dead_letters()] == [other]


@contextmanager
def parameters_of_statements() -> Iterator[list[int]]:
    """Yield a list that grows by the number of parameters of every statement of this thread."""
    seen: list[int] = []

    def note(execute, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen.append(len(params or ()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


class TestAsManyOffsetsAsOneLikes:
    """No statement may name them all: databases bound its parameters, and one of so many is slow."""

    @pytest.fixture
    def many(self, patient: Patient) -> list[int]:
        """More offsets than any statement takes, those of the dead letters first."""
        first = Message.objects.dead_letters().order_by("offset")[0].offset
        return list(range(first, first + 40_000))

    def test_are_replayed(self, consuming: Consuming, patient: Patient, many: list[int]) -> None:
        with parameters_of_statements() as parameters:
            assert replay("t", offsets=many, group="one") == 3
        assert max(parameters) <= OFFSETS_AT_ONCE + 10
        assert Message.objects.dead_letters().count() == 3

    def test_are_discarded(self, consuming: Consuming, patient: Patient, many: list[int]) -> None:
        with parameters_of_statements() as parameters:
            assert discard("t", offsets=many) == 6
        assert max(parameters) <= OFFSETS_AT_ONCE + 10

    def test_are_replayed_by_a_request(self, consuming: Consuming, patient: Patient, many: list[int]) -> None:
        last = Message.objects.dead_letters().latest("offset").offset
        with parameters_of_statements() as parameters:
            ordered = request_replay(LOG, "t", offsets=many)
            assert (ordered.total, ordered.through) == (6, last)
            carry_out_all()
        assert max(parameters) <= OFFSETS_AT_ONCE + 10
        ordered.refresh_from_db()
        assert (ordered.state, ordered.done) == ("done", 6)

    def test_are_taken_oldest_first_whatever_statement_names_them(
        self, consuming: Consuming, patient: Patient, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(replay_module, "OFFSETS_AT_ONCE", 2)
        dead_letters = sorted(Message.objects.dead_letters().values_list("offset", flat=True))

        def left() -> list[int]:
            return sorted(Message.objects.dead_letters().values_list("offset", flat=True))

        assert replay("t", offsets=reversed(dead_letters), limit=3) == 3
        assert left() == dead_letters[3:]
        assert discard("t", offsets=dead_letters, limit=1) == 1
        ordered = request_replay(LOG, "t", offsets=dead_letters)
        assert (ordered.total, ordered.through) == (2, dead_letters[5])
        carry_out_all()
        assert left() == []


def carry_out_all() -> None:
    while carry_out(LOG):
        pass


def test_chosen_dead_letters_go_the_oldest_first_however_they_are_named(consuming: Consuming, patient: Patient) -> None:
    dead_letters = sorted(Message.objects.dead_letters().values_list("offset", flat=True))
    unsorted = [dead_letters[5], dead_letters[0], dead_letters[3], dead_letters[0]]
    assert replay("t", offsets=unsorted, limit=2) == 2
    assert set(Message.objects.dead_letters().values_list("offset", flat=True)) == set(dead_letters) - {
        dead_letters[0],
        dead_letters[3],
    }


def test_dead_letters_of_a_group_that_was_removed_stay_dead_letters(consuming: Consuming, patient: Patient) -> None:
    """As messages they would be for a group without consumers, and be collected unread."""
    groups.remove(LOG, "two", "t")
    with pytest.raises(ConfigurationError, match="group two of topic t is not registered any more"):
        replay("t", group="two")
    assert replay("t") == 3
    assert Message.objects.dead_letters("two", "t").count() == 3
    assert discard("t", group="two") == 3
