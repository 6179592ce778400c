"""The handlers: each writes down that it begins, does what the message asks for, and writes down how it ends.

The signals' facts are written down as well: they are what the consumers say of themselves.
"""

import asyncio
import logging
import os
import random
import re
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from sqlqueue import Delivery, Postpone, Reject, Retry, consumer, periodic, signals
from sqlqueue.conf import settings
from sqlqueue.models import Topic
from tests.soak import sabotage
from tests.soak.history import FOLDER, Journal
from tests.soak.models import Entry
from tests.soak.workload import (
    ADDED,
    ALL_READERS,
    APART_TOPICS,
    BLOCKED,
    DEAD_LETTERS,
    DECORATED,
    JOB_READERS,
    LATER,
    MEMBERS,
    ONLY_TOPICS,
    PHASES,
    READERS,
    SABOTAGE,
    SCHEDULES,
    TICKS,
    TOO_LONG,
    VISIBILITY_TIMEOUT,
    WAIT,
    Reader,
    asked_by,
)

if FOLDER not in os.environ:
    raise ImproperlyConfigured(f"{FOLDER} does not name the folder of the history")
journal = Journal(Path(os.environ[FOLDER]), "consumer")
if os.environ.get(SABOTAGE, "") not in sabotage.EVERYWHERE:
    sabotage.commit(os.environ.get(SABOTAGE, ""))
phases = frozenset(filter(None, os.environ.get(PHASES, "").split(",")))
FAILED_TASK = re.compile(
    r"event=\w+_failed (?:resident|task|background_task)=(?P<task>\S+)(?: error_kind=(?P<fault>\S+))?"
)
asks = not phases.isdisjoint({"async", "idle"})  # handlers use the ORM, whatever they promise
LONG_ERROR = "äöü€🚀" * 3_000
served: set[str] = set()  # the database of this process's subscriber


class Trouble(Exception):
    """What a handler raises that was asked to fail."""


def begin(deliveries: Sequence[Delivery]) -> None:
    if not served.issuperset(delivery.database for delivery in deliveries):
        raise RuntimeError(f"this process serves {served}, and was given {deliveries}")
    journal.note_all("begin", [(d.topic, d.group, d.partition, d.offset, d.id, d.attempt, id(d)) for d in deliveries])


def end(deliveries: Sequence[Delivery], outcome: str) -> None:
    journal.note_all("end", [(d.topic, d.group, d.offset, d.attempt, outcome, id(d)) for d in deliveries])


def pause_of(delivery: Delivery) -> float:
    """Return for how many seconds the message wants its handler to be busy."""
    do, first = asked_by(delivery.payload), delivery.attempt == 1
    if do == "extend" or (do == "long" and first):
        delivery.extend(seconds=TOO_LONG + VISIBILITY_TIMEOUT)
    at_first = TOO_LONG if first else 0.0
    return {"slow": 0.05, "extend": TOO_LONG, "hang": at_first, "long": at_first}.get(do, 0.0)


def obey(delivery: Delivery, alone: bool = True) -> None:
    """Raise what the message asks for. In company it fails, so that the company is not rejected with it."""
    do, attempt = asked_by(delivery.payload), delivery.attempt
    if delivery.topic == DEAD_LETTERS:
        return  # it asked for that where it died
    if do == "die-always" or (do == "die" and attempt == 1):
        journal.note("died", delivery.topic, delivery.group, delivery.offset)
        os.kill(os.getpid(), signal.SIGKILL)
    if do == "add" and delivery.group == "crew":
        add_member(delivery)
    if do == "fail-long" and attempt == 1:
        raise Trouble(LONG_ERROR)
    if do in ("wait", "later") and attempt == 1:
        raise Retry("asked for", delay=WAIT if do == "wait" else LATER)
    if do == "exhaust" or (do == "fail" and attempt == 1) or (do == "fail-2" and attempt <= 2):
        raise Trouble(do)
    if do == "retry" and attempt == 1:
        raise Retry("asked for", delay=0.1)
    if do == "postpone" and random.random() < 0.5:
        raise Postpone(delay=0.1)
    if do == "reject" or (do == "reject-once" and not delivery.id.startswith("replay:")):
        raise Reject("asked for") if alone else Trouble(do)


def add_member(delivery: Delivery) -> None:
    """Add a member to the batch of a message, and then fail, half of the time at first: it is added once."""
    from sqlqueue import Batch

    batch, id = Batch.of(delivery), delivery.id + ADDED
    assert batch is not None
    payload = {"id": id, "do": "ok", "batch": delivery.payload["batch"]}
    batch.publish(MEMBERS, payload, key=delivery.key, id=id)
    if delivery.attempt == 1 and random.random() < 0.5:
        raise Trouble("add")


OUTCOMES: dict[type[BaseException], str] = {
    Trouble: "fail",
    Retry: "retry",
    Postpone: "postpone",
    Reject: "reject",
    asyncio.CancelledError: "cancelled",  # it had overrun, and its loop runs again: no query of its own failed
}


def outcome_of(error: BaseException) -> str:
    return OUTCOMES.get(type(error), f"error {error!r}")


def handle(reader: Reader, deliveries: Sequence[Delivery]) -> None:
    begin(deliveries)
    try:
        if asks and not reader.batch:
            Topic.objects.filter(name=reader.topic).exists()
        for delivery in deliveries:
            if reader.replies:  # what an attempt replies that fails then must never arrive
                delivery.reply({"id": delivery.payload["id"], "group": delivery.group, "attempt": delivery.attempt})
            time.sleep(pause_of(delivery))
            obey(delivery, alone=len(deliveries) == 1)
        if reader.atomic:
            entries = [Entry(group=d.group, message=d.id, attempt=d.attempt) for d in deliveries]
            Entry.objects.using(deliveries[0].database or settings.DATABASE).bulk_create(entries)
    except BaseException as error:
        end(deliveries, outcome_of(error))
        raise
    end(deliveries, "ok")


def register(reader: Reader) -> None:
    """Register a handler of the kind that the reader wants."""
    if reader.is_async:

        async def handle_async(delivery: Delivery) -> None:
            begin([delivery])
            try:
                if delivery.payload["do"] == "block" and delivery.attempt == 1:
                    journal.note("blocks", BLOCKED)
                    time.sleep(BLOCKED)
                await asyncio.sleep(pause_of(delivery))
                if asks:
                    await Topic.objects.filter(name=delivery.topic).aexists()
                obey(delivery)
            except BaseException as error:
                end([delivery], outcome_of(error))
                raise
            end([delivery], "ok")

        handler: Any = handle_async
    elif reader.batch:

        def handler(deliveries: list[Delivery]) -> None:
            handle(reader, deliveries)
    else:

        def handler(delivery: Delivery) -> Any:
            if reader.keeps_results:
                journal.note("value", delivery.id, delivery.payload["value"])
            handle(reader, [delivery])
            if reader.replies:
                return "a second reply, which no caller gets"
            return {"value": delivery.payload["value"]} if reader.keeps_results else None

    handler.__qualname__ = f"handle_{reader.topic}_for_{reader.group}"
    if reader.topic == TICKS:
        schedule = SCHEDULES[DECORATED]
        periodic(every=schedule.every, missed=schedule.missed, name=DECORATED, **reader.options)(handler)
    else:
        consumer(reader.topic, **reader.options)(handler)


only = frozenset(filter(None, os.environ.get(ONLY_TOPICS, "").split(",")))
for each in ALL_READERS if phases or only else [*READERS, *JOB_READERS]:
    if each.topic in only or not (only or each.topic in APART_TOPICS):
        register(each)


class Hang:
    """What SIGUSR2 asks for: the next receiver of a signal on the consumer's loop blocks it."""

    wanted = False

    def __init__(self) -> None:
        signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, *_: object) -> None:
        self.wanted = True

    def block(self, **_: object) -> None:
        """Block, if that was asked for."""
        if self.wanted and threading.current_thread() is threading.main_thread():
            self.wanted = False
            journal.note("hangs", BLOCKED)
            time.sleep(BLOCKED)


if threading.current_thread() is threading.main_thread():
    hang = Hang()
    signals.delivery_settled.connect(hang.block, weak=False)


def note_complaint(record: logging.LogRecord) -> bool:
    """Write down what the engine complains of: which task of its own failed, and how."""
    if record.levelno >= logging.WARNING and (found := FAILED_TASK.match(record.getMessage())):
        journal.note("complaint", found["task"], found["fault"] or "")
    return True


# A filter and no handler: a logger that has a handler shows its lines there, and nowhere else.
logging.getLogger("sqlqueue").addFilter(note_complaint)


def note_signal(kind: str, signal_: Any, *names: str) -> None:
    def receiver(**facts: Any) -> None:
        journal.note(kind, *(facts[name] for name in names))

    signal_.connect(receiver, weak=False)


def note_database(database: str, **_: object) -> None:
    served.add(database)
    if database:
        journal.note("serves", database)


signals.subscriber_started.connect(note_database)
note_signal("settled", signals.delivery_settled, "topic", "group", "offset", "attempt", "outcome")
note_signal("dead", signals.dead_lettered, "topic", "group", "offset", "attempt")
note_signal("acquired", signals.lease_acquired, "topic", "group", "partitions", "subscriber")
note_signal("released", signals.lease_released, "topic", "group", "partitions", "subscriber")
note_signal("lost", signals.lease_lost, "topic", "group", "partition", "subscriber")
note_signal("subscriber", signals.subscriber_started, "subscriber")
note_signal("left", signals.subscriber_stopped, "subscriber")
note_signal("filtered", signals.messages_filtered, "topic", "group", "count")
note_signal("collected", signals.messages_collected, "topic", "count")
