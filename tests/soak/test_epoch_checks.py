"""The checks of topics whose partitions are changed find what was planted into a history, and nothing in those that are
sound. "k" is the key of all; the first epoch has one partition, 0, and the second one two, 1 and 2."""

from __future__ import annotations

from dataclasses import replace

from sqlqueue.core.keys import Epoch
from tests.soak import epochs
from tests.soak.progress import BOUND
from tests.soak.records import Change
from tests.soak.stories import MINUTE, ONE, OTHER, SIMPLE, STRICT, History, Stories

FIRST, SECOND = Epoch(0, 0, 1, end=10), Epoch(1, 1, 2)
LATER = SECOND.partition_of("k")
ALTERED, DONE = 10.0, 12.0  # when it is under way, at first sight


class EpochHistory(History):
    """A run in which the partitions of a topic are changed: one process has those of the second epoch from then on."""

    def __init__(self) -> None:
        super().__init__()
        for topic in (SIMPLE, STRICT):
            self.record.epochs[topic] = (FIRST, SECOND)
            self.changed(topic)
            for partition in SECOND.numbers:
                self.acquire(ONE, DONE + 0.5, topic, partition=partition)
        self.record.until = MINUTE

    def changed(self, topic: str, ended: float | None = DONE) -> None:
        self.record.changes.append(Change(topic, SECOND.number, SECOND.base, SECOND.partitions, ALTERED, ended))

    def takes(self, seconds: float) -> None:
        """The changes take so long."""
        ended = ALTERED + seconds
        self.record.changes = [replace(change, ended=ended) for change in self.record.changes]


STORIES = Stories(EpochHistory)
planted, sound = STORIES.planted, STORIES.sound


def one_of_each(history: EpochHistory, first: float, second: float, topic: str = SIMPLE) -> None:
    """A message of each epoch, and when they are handled."""
    history.publish("first", topic=topic, at=9)
    history.publish("second", topic=topic, at=11)
    history.handle("first", first, topic=topic)
    history.handle("second", second, topic=topic, partition=LATER)


@sound
def the_second_epoch_begins_behind_the_first(history: EpochHistory) -> None:
    one_of_each(history, 13, 14)


@sound
def a_strict_partition_goes_on_in_the_second_epoch(history: EpochHistory) -> None:
    one_of_each(history, 13, 14, STRICT)


@planted("out of order")
def the_second_epoch_begins_although_the_first_has_more_of_the_key(history: EpochHistory) -> None:
    one_of_each(history, 14, 13)


@planted("out of order")
def a_strict_partition_goes_on_too_early(history: EpochHistory) -> None:
    one_of_each(history, 14, 13, STRICT)


@planted("published twice")
def an_id_is_in_both_epochs(history: EpochHistory) -> None:
    one_of_each(history, 13, 14)
    history.publish("again", at=12)
    history.handle("again", 15, offset=50, confirmed=False)
    history.handle("again", 16, offset=51, attempt=1, partition=LATER)
    history.fault("kill-consumer", 15.5, to=ONE)
    history.acquire(OTHER, 15.6)


@planted("epochs wrong")
def in_the_partition_of_another_key(history: EpochHistory) -> None:
    history.publish("m", at=11)
    history.handle("m", 13, partition=next(number for number in SECOND.numbers if number != LATER))


@planted("epochs wrong")
def in_a_partition_that_the_topic_never_had(history: EpochHistory) -> None:
    history.acquire(ONE, 12, partition=3)
    history.publish("m", at=11)
    history.handle("m", 13, partition=3)


@planted("epochs wrong")
def published_into_the_first_epoch_behind_the_second(history: EpochHistory) -> None:
    history.publish("early", at=10)
    history.handle("early", 13, partition=LATER)
    history.publish("late", at=20)
    history.handle("late", 21)


@planted("epochs wrong")
def published_into_the_first_epoch_although_all_keys_have_gone_over(history: EpochHistory) -> None:
    history.publish("late", at=DONE + 1)
    history.handle("late", DONE + 2)


@sound
def published_into_the_first_epoch_while_the_key_goes_over(history: EpochHistory) -> None:
    history.publish("slow", at=10, told=2)
    history.publish("quick", at=11)
    history.handle("slow", 12.2)
    history.handle("quick", 13, partition=LATER)


# -- a change is carried on -------------------------------------------------------------------------------------------


@planted("changes left")
def a_change_that_no_process_carried_on_for_too_long(history: EpochHistory) -> None:
    history.takes(epochs.MOST + 1)


@planted("changes left")
def a_change_that_was_never_seen_to_end(history: EpochHistory) -> None:
    history.record.changes = [replace(change, ended=None) for change in history.record.changes]


@planted("changes left")
def a_change_that_was_under_way_at_the_end(history: EpochHistory) -> None:
    history.record.unfinished = "to two partitions"


@planted("changes left")
def a_change_that_was_left_by_a_killed_consumer(history: EpochHistory) -> None:
    history.takes(epochs.MOST + 3)
    history.fault("kill-consumer", ALTERED + 1, to=ONE)


@planted("changes left")
def a_change_during_which_transactions_followed_one_another(history: EpochHistory) -> None:
    history.takes(epochs.MOST + epochs.WAITS + 1)
    for number in range(18):
        history.publish(f"m{number}", at=ALTERED + number, told=1)
        history.handle(f"m{number}", ALTERED + number + 1)


@sound
def a_change_that_waited_for_an_open_transaction(history: EpochHistory) -> None:
    history.takes(epochs.MOST + 8)
    history.publish("m", at=ALTERED - 1, told=10)
    history.handle("m", ALTERED + 9.5)


@sound
def a_change_that_waited_for_the_server(history: EpochHistory) -> None:
    history.takes(epochs.MOST + 8)
    history.fault("restart-server", ALTERED + 1, 3)


# -- groups walk on ---------------------------------------------------------------------------------------------------


@planted("stood still")
def a_partition_of_the_second_epoch_that_was_never_begun(history: EpochHistory) -> None:
    one_of_each(history, 13, 13.1 + BOUND + 1)


@sound
def a_partition_that_waits_for_what_the_first_epoch_has_of_its_keys(history: EpochHistory) -> None:
    history.publish("first", at=9)
    history.publish("second", at=11)
    for number in range(3):
        history.handle("first", 9.2 + 9 * number, "fail", attempt=number + 1)
    history.handle("first", 36, attempt=4)
    history.handle("second", 37 + BOUND / 2, partition=LATER)


@sound
def a_partition_that_waits_until_what_was_in_doubt_is_handled_again(history: EpochHistory) -> None:
    one_of_each(history, 13, 40 + BOUND / 2)
    history.fault("kill-consumer", 13.5, to=ONE)
    history.acquire(OTHER, 13.6)
    for partition in SECOND.numbers:
        history.acquire(OTHER, 13.6, partition=partition)
    history.handle("first", 40, by=OTHER, attempt=2)
    del history.record.settled[:2]  # nothing was confirmed before
    for handling in history.record.handlings:
        if handling.partition == LATER:
            handling.process = OTHER


@sound
def a_partition_that_waits_for_the_end_of_the_first_epoch(history: EpochHistory) -> None:
    history.publish("open", at=8, told=30)
    history.handle("open", 38.2)
    history.takes(28)
    one_of_each(history, 10, ALTERED + 28 + BOUND / 2)


# ---------------------------------------------------------------------------------------------------------------------


test_what_was_planted_is_found_and_nothing_else = STORIES.test()


def test_every_kind_of_violation_has_been_planted() -> None:
    assert STORIES.kinds >= epochs.VIOLATIONS.keys()
