"""What a failover's server forgot is told from what the queue lost; neither excuses the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak.history import Journal, read
from tests.soak.records import Failover, Reader
from tests.soak.stories import ATOMIC, SIMPLE, History, found_in, groups_of
from tests.soak.topologies.losses import Losses, forget
from tests.soak.workload import LEASE_DURATION

pytestmark = pytest.mark.once

DIED, OPENED = 10.0, 12.0
(GROUP,) = groups_of(SIMPLE)
(ATOMIC_GROUP,) = groups_of(ATOMIC)


def fail_over(
    history: History, *forgotten: str, pending: tuple[str, ...] = (), topic: str = SIMPLE, died: float = DIED
) -> Losses:
    """At `died` the server dies, and 2 s later another one serves that has forgotten these messages, and has these
    still to be delivered."""
    waiting = {(topic, group, id) for group in groups_of(topic) for id in pending}
    opened = died + OPENED - DIED
    history.record.failovers.append(
        Failover(died, opened, frozenset((topic, id) for id in forgotten), frozenset(waiting))
    )
    history.fault("fail-over", died, opened - died)
    history.record.handlings.sort(key=lambda handling: handling.began)
    history.record.settled.sort()
    return forget(history.record)


def test_a_confirmed_message_that_the_database_forgot_is_its_loss() -> None:
    history = History()
    history.publish("m", at=9)
    losses = fail_over(history, "m")
    assert losses.messages == {(SIMPLE, "m")}
    assert not found_in(history)


def test_a_confirmed_message_that_the_database_kept_is_the_queues_to_deliver() -> None:
    history = History()
    history.publish("m", at=9)
    losses = fail_over(history, pending=("m",))
    assert not losses.messages
    assert found_in(history) == {"lost": 1}


def test_a_message_that_is_confirmed_after_the_failover_is_never_excused() -> None:
    history = History()
    history.publish("m", at=OPENED + 1)
    losses = fail_over(history, "m")
    assert not losses.messages
    assert found_in(history) == {"lost": 1}


def test_what_was_published_again_has_to_be_delivered() -> None:
    history = History()
    history.publish("m", at=9, told=OPENED + 1 - 9)
    history.record.transactions[0].doubted = True
    losses = fail_over(history, "m")
    assert not losses.messages
    assert found_in(history) == {"lost": 1}


def test_what_a_stopped_publisher_notes_late_was_confirmed_by_the_former_server() -> None:
    history = History()
    history.publish("m", at=9, told=OPENED + 1 - 9)
    assert fail_over(history, "m").messages == {(SIMPLE, "m")}
    assert not found_in(history)


def test_what_was_published_again_is_handled_again() -> None:
    history = History()
    history.publish("m", at=9, told=OPENED + 1 - 9)
    history.record.transactions[0].doubted = True
    history.handle("m", 9.5, offset=7)
    history.handle("m", OPENED + 2, offset=5)
    assert not fail_over(history, "m").messages
    assert not found_in(history)


def test_a_transaction_in_doubt_that_one_group_saw_is_forgotten_whole() -> None:
    history = History()
    history.publish("m", "n", topic="orders", at=8, told=None)
    history.handle("m", 9, topic="orders", group="ship")
    losses = fail_over(history, "m", "n", topic="orders")
    assert losses.unconfirmed == {("orders", "m"), ("orders", "n")}
    assert not losses.messages
    assert not found_in(history)


def test_a_transaction_in_doubt_that_was_seen_after_the_failover_is_there_for_all_groups() -> None:
    history = History()
    history.publish("m", topic="orders", at=9, told=None)
    history.handle("m", OPENED + 2, topic="orders", group="ship")
    assert not fail_over(history, "m", topic="orders").unconfirmed
    assert found_in(history) == {"lost": len(groups_of("orders")) - 1}


def test_what_a_process_had_read_is_begun_no_later_than_its_lease_lasts() -> None:
    for at, found in ((OPENED + 1, {}), (OPENED + LEASE_DURATION + 1, {"never published": 1})):
        history = History()
        history.publish("m", at=9)
        history.handle("m", at, confirmed=False)
        fail_over(history, "m")
        assert found_in(history) == found


def test_an_ack_that_the_database_forgot_lets_a_message_be_delivered_again() -> None:
    history = History()
    history.publish("m", at=8)
    history.handle("m", 9)
    history.handle("m", OPENED + 1)
    losses = fail_over(history, pending=("m",))
    assert losses.acks == {(SIMPLE, GROUP, "m")}
    assert not found_in(history)


def test_an_ack_that_the_database_kept_does_not() -> None:
    history = History()
    history.publish("m", at=8)
    history.handle("m", 9)
    history.handle("m", OPENED + 1)
    assert not fail_over(history, pending=("another",)).acks
    assert found_in(history).keys() == {"unexplained duplicates", "delivered after the ack", "attempts wrong"}


def test_an_ack_after_the_failover_is_not_forgotten_by_it() -> None:
    history = History()
    history.publish("m", at=8)
    history.handle("m", OPENED + 1)
    history.handle("m", OPENED + 12)
    assert not fail_over(history, pending=("m",)).acks
    assert found_in(history).keys() >= {"delivered after the ack"}


def test_a_handler_without_effects_that_has_run_needs_no_second_run() -> None:
    history = History()
    history.publish("m", at=8)
    history.handle("m", 9)
    assert fail_over(history, pending=("m",)).acks == {(SIMPLE, GROUP, "m")}
    assert not found_in(history)


def test_the_effect_of_an_atomic_handler_that_was_forgotten_with_its_ack_has_to_come_again() -> None:
    for again in (True, False):
        history = History()
        history.publish("m", topic=ATOMIC, at=8)
        history.handle("m", 9, topic=ATOMIC)
        history.record.entries.clear()  # with the ack
        if again:
            history.handle("m", OPENED + 1, topic=ATOMIC)
        assert fail_over(history, pending=("m",), topic=ATOMIC).acks == {(ATOMIC, ATOMIC_GROUP, "m")}
        assert found_in(history) == ({} if again else {"effects lost": 1})


def test_order_is_kept_among_what_is_delivered_again() -> None:
    history = History()
    for number, id in enumerate(("m", "n")):
        history.publish(id, at=7 + number)
        history.handle(id, 8.5 + number / 2)
    history.handle("n", OPENED + 1)
    history.handle("m", OPENED + 2)
    fail_over(history, pending=("m", "n"))
    assert found_in(history) == {"out of order": 1}


def test_what_ran_before_and_is_not_run_again_is_in_no_order_with_what_is() -> None:
    history = History()
    for number, id in enumerate(("m", "n")):
        history.publish(id, at=7 + number)
        history.handle(id, 8.5 + number / 2)
    history.handle("m", OPENED + 2)
    fail_over(history, pending=("m", "n"))
    assert not found_in(history)


def test_several_failovers_are_each_accounted_for() -> None:
    history = History()
    history.publish("m", at=9)
    history.publish("n", at=29)
    assert fail_over(history, "m").messages == {(SIMPLE, "m")}
    assert fail_over(history, "n", died=30.0).messages == {(SIMPLE, "n")}
    assert not found_in(history)


def test_an_offset_that_another_message_was_given_does_not_carry_its_ack_over() -> None:
    history = History()
    history.publish("m", at=8)
    history.handle("m", 9, offset=7)
    history.publish("n", at=OPENED + 1)
    history.handle("n", OPENED + 2, offset=7)
    fail_over(history)
    assert not found_in(history)


def test_failovers_are_part_of_the_history(tmp_path: Path) -> None:
    Journal(tmp_path, "harness").note("failover", DIED, OPENED, [[SIMPLE, "m"]], [[SIMPLE, GROUP, "n"]])
    failover = Failover(DIED, OPENED, frozenset({(SIMPLE, "m")}), frozenset({(SIMPLE, GROUP, "n")}))
    assert Reader().read(read(tmp_path)).failovers == [failover]
