"""Changes the number of a topic's partitions while publishers and consumers run.

Its keys go over to a new epoch: a block of partition numbers of its own. The rules are those of docs/protocol.md,
"The layout of a topic". What has been done is in the tables, and the next step follows from them: the process that
takes it, the command or a consumer process, does what is due, one at a time, each in a transaction of its own. A
process that dies in between holds nothing up, and the next one goes on.

MySQL:      the gate's rows, one after another, tell publishers to ask the topic's slots; then the slots turn, then the
            former epoch's end is read, and the gate's rows tell publishers to ask the slots no more.
PostgreSQL: the new generation is put in force; when all who held the gate then have ended, the end is read.
SQLite:     one transaction.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.relay import is_relay_topic
from sqlqueue.core.settings import MOST_PARTITIONS
from sqlqueue.database import retries, turning, writer
from sqlqueue.database.gate import LAYOUT, take_duty
from sqlqueue.database.generations import EPOCH_SLOTS
from sqlqueue.database.horizon import Horizon, on_one_server
from sqlqueue.database.insert_sql import SLOTS
from sqlqueue.database.log import Log
from sqlqueue.database.retries import in_transaction
from sqlqueue.database.server_identity import ServerChanged, ServerIdentity, SessionReplaced
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log import layouts
from sqlqueue.log.layout_changes import (
    END,
    GATE,
    KEYS,
    LAST,
    TRANSACTIONS,
    Change,
    Progress,
    add,
    insert_turning,
    later_block,
    may_abort,
    stay,
    under_way,
    write_end,
)
from sqlqueue.models import EpochSlot

STUBBORN: Final = 20  # passes in which nothing was free, after which one row is waited for


def begin(log: Log, topic: str, partitions: int) -> Change | None:
    """Let a topic's keys go over to so many new partitions; return the change if it is not done at once.

    Raises ConfigurationError for what cannot be done, among others while another change is under way.
    """
    if log.dialect.gated:
        retries.run(log, _begin, log, topic, partitions, None)
    else:
        with on_one_server(log) as server:
            retries.run(log, _begin, log, topic, partitions, server)
    return under_way(log)


def refuse(log: Log, topic: str, partitions: int, change: Change | None) -> None:
    """Raise ConfigurationError if a change of a topic's partitions cannot be begun. change: the one that is under way
    then."""
    if topic.endswith(DEAD_LETTER_SUFFIX):
        raise ConfigurationError(f"topic {topic!r} has dead letters: its partitions stay")
    if is_relay_topic(topic):
        raise ConfigurationError(f"topic {topic!r} has what is on its way to another database: its partition stays")
    if not 1 <= partitions <= MOST_PARTITIONS:
        raise ConfigurationError(f"partitions must be 1 to {MOST_PARTITIONS}, not {partitions}")
    turning.refuse_who_may_not(log)
    if change is not None:
        raise ConfigurationError(
            f"the partitions of topic {change.topic!r} are being changed, and one topic's at a time are: let that end"
            f" first (`queuetopic alter {change.topic} --partitions {change.later.partitions}` carries it on)"
        )


def _begin(log: Log, topic: str, partitions: int, server: ServerIdentity | None) -> None:
    if not take_duty(log, LAYOUT):
        raise ConfigurationError("another process changes a topic's partitions at this moment: try again")
    refuse(log, topic, partitions, under_way(log))
    present = layouts.epochs(log, topic)[-1]
    if present.partitions == partitions:
        raise ConfigurationError(f"topic {topic!r} has {partitions} partitions already")
    writer.refuse_elsewhere(log)
    later = later_block(log, topic, partitions)
    if log.dialect.slotted:
        insert_turning(log, topic, present.number, later)
        return
    generation = add(log, topic, later)
    if server is None:
        EpochSlot.objects.using(log.alias).create(topic=topic, slot=0, epoch=present.number)
        return
    turning.put_in_force(log, generation)
    write_end(log, topic, present.number)
    server.confirm()


@in_transaction
def abort(log: Log, topic: str) -> None:
    """Let publishers stay with the partitions that they have. Raises ConfigurationError if nothing is under way, and
    once the first keys have gone over: there is no way back then, only onward."""
    if not take_duty(log, LAYOUT):
        raise ConfigurationError("another process is at a step of it at this moment: try again")
    stay(log, abortable(log, topic))


def abortable(log: Log, topic: str) -> Change:
    """Return the change of a topic's partitions that is under way. Raises ConfigurationError if it cannot be
    aborted."""
    change = under_way(log)
    if change is None or change.topic != topic or not change.going:
        raise ConfigurationError(f"there is nothing to abort: no change of topic {topic!r} is under way")
    if not may_abort(log, change):
        raise ConfigurationError(
            f"keys of topic {topic!r} have gone over to the new partitions already, and an order that is kept has no"
            f" way back: let it end, and then alter it to {change.earlier.partitions} partitions again"
        )
    return change


class Repartition:
    """Takes the steps of the change that is under way on a database, if there is one. Not thread-safe."""

    def __init__(self, log: Log, stubborn: int = STUBBORN):
        """stubborn: passes in which nothing was free, after which one row is waited for: 1 for who comes seldom."""
        self.log, self._stubborn = log, stubborn
        self._fruitless = 0  # passes in a row in which nothing was free
        self._gone: Horizon | None = None
        self._gone_for = 0  # the generation

    def step(self) -> Progress | None:
        """Do what can be done at once; return what is left, None if no change is under way. Waits for a second at
        most, and that rarely."""
        change = under_way(self.log)
        if change is None:
            return None
        if self.log.dialect.slotted:
            return self._slotted(change)
        try:
            return self._at_once(change)
        except (ServerChanged, SessionReplaced):
            self._gone_for = 0
            retries.drop_connection(self.log)
            return Progress(TRANSACTIONS, 1, 1)

    def run(self, pause: float = 0.05, give_up: Callable[[], bool] = lambda: False) -> Iterator[Progress]:
        """Take steps until the change is done, or `give_up` says so; yield what is left after each."""
        while (progress := self.step()) is not None:
            yield progress
            if give_up():
                return
            time.sleep(pause)

    # -- MySQL --------------------------------------------------------------------------------------------------------

    def _slotted(self, change: Change) -> Progress:
        log = self.log
        behind = turning.behind(log, turning.GATE_ROWS, change.generation)
        if behind:
            turned = self._pass(change, turning.GATE_ROWS, behind, change.generation)
            return Progress(GATE if change.going else LAST, len(behind) - turned, SLOTS)
        if not change.going:
            retries.run(log, _finish, log, change)
            return Progress(LAST, 0, SLOTS)
        unturned = turning.behind(log, turning.KEY_SLOTS, change.topic, change.later.epoch)
        if unturned:
            turned = self._pass(change, turning.KEY_SLOTS, unturned, change.later.epoch)
            return Progress(KEYS, len(unturned) - turned, EPOCH_SLOTS)
        with on_one_server(log) as server:
            retries.run(log, _close, log, change, server)
        return Progress(END, 0, 1)

    def _pass(self, change: Change, rows: turning.Rows, keys: list[int], to: int) -> int:
        """Turn what is free of these rows; return how many."""
        turned = 0
        for first in range(0, len(keys), turning.AT_ONCE):
            some = keys[first : first + turning.AT_ONCE]
            turned += retries.run(self.log, _switch, self.log, change, rows, to, some)
        self._fruitless = 0 if turned else self._fruitless + 1
        if self._fruitless >= self._stubborn:
            self._fruitless = 0
            turned += retries.run(self.log, _switch, self.log, change, rows, to, keys[:1], wait=True)
        return turned

    # -- PostgreSQL ---------------------------------------------------------------------------------------------------

    def _at_once(self, change: Change) -> Progress:
        log = self.log
        if turning.newest_generation(log) < change.generation or self._gone_for != change.generation:
            if not retries.run(log, _put_in_force, log, change):
                return Progress(TRANSACTIONS, 1, 1)
            self._gone, self._gone_for = Horizon(log, ServerIdentity(log)), change.generation
        assert self._gone is not None
        if not self._gone.passed():
            return Progress(TRANSACTIONS, self._gone.waits_for, self._gone.waits_for)
        with on_one_server(log) as server:
            retries.run(log, _close, log, change, server)
        return Progress(END, 0, 1)


def _put_in_force(log: Log, change: Change) -> bool:
    """Let the change's generation hold, unless it is over: a process that was stopped before this would else put
    publishers back into an epoch that has ended. That never is undone with the transaction, so it only rises."""
    if not take_duty(log, LAYOUT) or under_way(log) != change:
        return False
    if turning.newest_generation(log) < change.generation:
        turning.put_in_force(log, change.generation)
    return True


def _switch(log: Log, change: Change, rows: turning.Rows, to: int, keys: list[int], wait: bool = False) -> int:
    if not take_duty(log, LAYOUT) or under_way(log) != change:
        return 0
    if rows is turning.KEY_SLOTS and turning.behind(log, turning.GATE_ROWS, change.generation):
        return 0  # a publisher may still not ask the slots
    writer.refuse_elsewhere(log)
    return turning.switch(log, rows, to, keys, wait)


def _close(log: Log, change: Change, server: ServerIdentity) -> None:
    """Store the former epoch's end, now that no publisher can add to it, and all that was added is visible."""
    if not take_duty(log, LAYOUT) or under_way(log) != change:
        return
    if log.dialect.slotted:
        if turning.behind(log, turning.KEY_SLOTS, change.topic, change.later.epoch):
            return
        write_end(log, change.topic, change.earlier.epoch)
        add(log, change.topic, change.later)
    else:
        if turning.newest_generation(log) < change.generation:
            return  # it was put in force on another server, which this one has replaced
        write_end(log, change.topic, change.earlier.epoch)
        EpochSlot.objects.using(log.alias).filter(topic=change.topic).delete()
    server.confirm()


def _finish(log: Log, change: Change) -> None:
    """Take the slots away, which no publisher asks any more."""
    if not take_duty(log, LAYOUT) or under_way(log) != change:
        return
    if not log.dialect.slotted or not turning.behind(log, turning.GATE_ROWS, change.generation):
        EpochSlot.objects.using(log.alias).filter(topic=change.topic).delete()
