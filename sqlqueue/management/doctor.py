"""The doctor: reads what it judges at once, judges it, and advises. Topics and groups are judged by stats.attention, as
on the admin's overview; what concerns this project's handlers is judged here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from django.db.models import Min

from sqlqueue.conf import settings
from sqlqueue.consumers.declare.registry import Consumer
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.clock import moment, now
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import HORIZON, NAMED, SLOTS
from sqlqueue.database.limits import OWN_CONNECTIONS, limits, missing_indexes
from sqlqueue.database.log import Log, all_logs
from sqlqueue.database.tables import pending_migrations, queue_models
from sqlqueue.models import PeriodicSchedule, PublishGate, ScheduledMessage
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import ERROR, NOTE, WARNING, command_line
from sqlqueue.stats.survey import survey

OK: Final = "ok"

CLOCK_READS = 3  # the one with the shortest round trip counts
MOST_REFUSALS = 5
NEARLY_FULL = 0.8  # of the connections that the server allows
FORWARDED_LATE = 30.0  # seconds
CLOCK_TOLERANCE = 1.0  # seconds
CLOCK_WRONG = 30.0  # seconds


class ClockSkew(NamedTuple):
    """By how many seconds the host's clock is ahead of the database's, plus or minus `uncertainty`."""

    ahead: float
    uncertainty: float


class ForwardedPublishes(NamedTuple):
    """In a cluster of several writable servers, the writer (with a "-" before it until the log is open there), how many
    messages that were published on other servers wait to be forwarded to it, and for how many seconds the oldest
    does."""

    writer: str
    waiting: int
    oldest: float


class Diagnostics:
    """What the doctor judges.

    pending: migrations are not applied, and the tables were not read; connection: Django's settings of the database;
    processes, threads: how many are to run; refusals: the first scheduled messages that were refused, one more than are
    told; periodic: there are periodic schedules; others: how many databases there are beside this one; forwarded: None
    where there is no writer.
    """

    def __init__(
        self, log: Log, handlers: Sequence[Consumer], processes: int | None = None, threads: int | None = None
    ) -> None:
        """processes: None for as many as are alive (one if none is)."""
        self.handlers, self.threads, self.processes = handlers, threads or settings.THREADS, processes or 1
        self.limits, self.connection = limits(log), log.connection.settings_dict
        self.others, self.periodic = len(all_logs()) - 1, False
        self.forwarded: ForwardedPublishes | None = None
        self.pending = pending_migrations(log)
        if self.pending:
            return
        self.survey = survey(log)
        self.processes = processes or self.survey.subscribers or 1
        self.missing_indexes = missing_indexes(log, queue_models())
        self.missing_slots = len((*DUTIES, NAMED, HORIZON)) + SLOTS - PublishGate.objects.using(log.alias).count()
        self.clock = _clock(log)
        refused = ScheduledMessage.objects.using(log.alias).filter(refused=True).order_by("due_at")
        self.refusals = list(refused[: MOST_REFUSALS + 1])
        self.periodic = PeriodicSchedule.objects.using(log.alias).exists()
        self.forwarded = _forwarded(log)


def _forwarded(log: Log) -> ForwardedPublishes | None:
    writer = PublishGate.objects.using(log.alias).filter(slot=NAMED).values_list("writer", flat=True).first()
    if not writer:
        return None
    waiting = ScheduledMessage.objects.using(log.alias).filter(pk__lt=0, refused=False)
    oldest = waiting.aggregate(oldest=Min("due_at"))["oldest"]
    age = 0.0 if oldest is None else max(0.0, (now(log) - moment(oldest)).total_seconds())
    return ForwardedPublishes(writer, waiting.count(), age)


def _clock(log: Log) -> ClockSkew:
    reads: list[ClockSkew] = []
    for _ in range(CLOCK_READS):
        before = time.time()
        database_now = now(log).timestamp()
        after = time.time()
        reads.append(ClockSkew((before + after) / 2 - database_now, (after - before) / 2))
    return min(reads, key=lambda skew: skew.uncertainty)


class Diagnosis(NamedTuple):
    """A result of one examination. level: OK, NOTE, WARNING or ERROR; about: what was examined; text: what was found;
    hint: what to do; command: shows more of it, or does that."""

    level: str
    about: str
    text: str
    hint: str = ""
    command: str = ""


def examine(read: Diagnostics) -> list[Diagnosis]:
    """Return what every examination has found, and last, how many have found nothing."""
    examinations = [migrations, *ON_THE_SERVER, *([] if read.pending else ON_TABLES)]
    results = [list(examination(read)) for examination in examinations]
    nothing = results.count([])
    return [one for found in results for one in found] + [
        Diagnosis(OK, "all else", f"{nothing} of {len(results)} examinations have found nothing")
    ]


def migrations(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the tables are those of this version."""
    if read.pending:
        hint = "python manage.py migrate sqlqueue (with --database if it is not the default one). Then ask again."
        text = "the queue's tables are not up to date: nothing else can be examined"
        yield Diagnosis(ERROR, "migrations", text, hint)


def connections(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the server allows as many connections as the consumers take."""
    allowed = read.limits.max_connections
    if allowed is None:
        return
    own = OWN_CONNECTIONS + read.periodic + (read.forwarded is not None)
    others = read.others * read.processes * 2 * read.threads  # their handlers publish here, and relay to it
    needed = read.processes * (2 * read.threads + own) + others
    text = (
        f"{read.processes} × (2 × {read.threads} threads + {own})"
        + (f" + {read.others} × {read.processes} × 2 × {read.threads} of other databases" if others else "")
        + f" = {needed} for the consumers, "
    )
    if read.limits.pooled:  # whose own limits it does not say
        of = f"which a pooler has to let in (max_client_conn); the server allows {allowed} to it and all others"
        yield Diagnosis(OK, "connections", text + of)
        return
    of = f"of {allowed}" + (f"; {read.limits.connections} are open now" if read.limits.connections is not None else "")
    hint = "Raise max_connections, or run fewer processes or threads; the web's workers need theirs, too."
    level = ERROR if needed > allowed else WARNING if needed > NEARLY_FULL * allowed else OK
    yield Diagnosis(level, "connections", text + of, "" if level == OK else hint)


def idle_connections(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the server closes idle connections that Django would still use."""
    idle, age = read.limits.idle_timeout, read.connection["CONN_MAX_AGE"]
    if idle is not None and (age is None or age >= idle) and not read.connection["CONN_HEALTH_CHECKS"]:
        kept = "for ever" if age is None else f"for {age:g} s"
        text = f"CONN_MAX_AGE keeps connections {kept}, and the server closes idle ones after {idle:g} s"
        hint = "Set CONN_HEALTH_CHECKS = True, or a CONN_MAX_AGE below that: else requests fail on dead connections."
        yield Diagnosis(WARNING, "idle connections", text, hint)
    if age == 0 and read.limits.max_connections is not None:
        text = "CONN_MAX_AGE is 0: a busy handler thread opens a connection each second"
        yield Diagnosis(NOTE, "idle connections", text, "Set CONN_MAX_AGE to some minutes.")


def lock_waits(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether a lock wait ends before a handler's visibility timeout does."""
    wait = read.limits.lock_wait
    for handler in read.handlers:
        if wait is not None and wait >= handler.options.visibility_timeout:
            text = (
                f"a statement may wait for a lock for {wait:g} s, {handler.name} may run for"
                f" {handler.options.visibility_timeout:g} s: it overruns before the database gives up"
            )
            hint = "Lower innodb_lock_wait_timeout (PostgreSQL: lock_timeout; SQLite: OPTIONS['timeout']),"
            yield Diagnosis(WARNING, "lock waits", text, f"{hint} or raise its visibility_timeout.")


def stopping(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether a handler may run longer than a stopping process waits for it."""
    limits = {one.name: one.options.visibility_timeout for one in read.handlers}
    longer = [name for name, limit in limits.items() if limit > settings.SHUTDOWN_TIMEOUT]
    if longer:
        longest = max(longer, key=limits.__getitem__)
        others = f" and {len(longer) - 1} more" if len(longer) > 1 else ""
        text = (
            f"a stop waits for handlers for {settings.SHUTDOWN_TIMEOUT:g} s (SHUTDOWN_TIMEOUT),"
            f" {longest}{others} may run for {limits[longest]:g} s"
        )
        hint = (
            "What is cut off is delivered again. If that is costly, raise SHUTDOWN_TIMEOUT and the service manager's."
        )
        yield Diagnosis(NOTE, "stopping", text, hint)


def indexes(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the indexes exist that the statements need."""
    for name in read.missing_indexes:
        hint = "Create it again (python manage.py sqlmigrate sqlqueue 0001 shows how): without it, reads scan the log."
        yield Diagnosis(ERROR, "indexes", f"{name} is missing", hint)


def gate(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the rows of the publish gate exist."""
    if read.missing_slots > 0:
        text = f"{read.missing_slots} rows of sqlqueue_publish_gate are missing: publishing is refused at times"
        yield Diagnosis(ERROR, "publish gate", text, "python manage.py migrate sqlqueue fills it again.")


def forwarded(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine, in a cluster of several writable servers, whether what is published on all of them enters the log."""
    if read.forwarded is None:
        return
    found = read.forwarded
    if found.oldest > FORWARDED_LATE or (found.writer.startswith("-") and found.waiting):
        text = f"{found.waiting} messages wait, the oldest for {found.oldest:.0f} s, to enter through {found.writer!r}"
        hint = "Let a consumer process run on that server; one that runs on another one takes over once none does."
        yield Diagnosis(ERROR, "named server", text, hint)


def clock(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the host's and the database's clocks agree."""
    ahead, uncertainty = read.clock.ahead, read.clock.uncertainty
    off = max(0.0, abs(ahead) - uncertainty)
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"this host's is {abs(ahead):.3f} s {relation} the database's (± {uncertainty:.3f} s)"
    level = OK if off <= CLOCK_TOLERANCE else NOTE if off <= CLOCK_WRONG else WARNING
    hint = "Deliveries are not affected; times that you compute (publish(at=…)) or compare in logs are. Correct NTP."
    yield Diagnosis(level, "clocks", text, "" if level == OK else hint)


def queue(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine topics and groups: what needs attention."""
    for one in findings(read.survey):
        yield Diagnosis(one.severity, one.kind.subject, one.text, one.advice, one.command)


def handlers(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether every group that no process serves has a handler, and every topic that a handler reads exists."""
    known = {(handler.topic, handler.group) for handler in read.handlers}
    for group in read.survey.groups:
        if not group.subscribers and (group.topic, group.group) not in known:
            text = f"{group.group!r} of {group.topic!r} has no handler here, and no process serves it"
            remove = command_line(["queuegroup", "remove", group.topic, group.group], read.survey.database)
            hint = "If it is no longer wanted, remove it. If a subscribe() loop or another project serves it: start"
            yield Diagnosis(WARNING, "groups", f"{text}: it holds back collection", f"{hint} that.", remove)
    names = {topic.name for topic in read.survey.topics}
    for name in sorted({topic for topic, _group in known} - names):
        near = did_you_mean(name, names)
        hint = f"Perhaps nothing has happened yet.{near if 'Did you mean' in near else ''}"
        yield Diagnosis(NOTE, "topics", f"{name!r} has a handler, and nothing was ever published to it", hint)


def refusals(read: Diagnostics) -> Iterator[Diagnosis]:
    """Say why scheduled messages were refused."""
    for row in read.refusals[:MOST_REFUSALS]:
        text = f"id {row.pk} for topic {row.topic!r} was refused: {row.refusal or ''}"
        hint = "Correct or withdraw it in the admin (Scheduled messages); or correct its row and set refused = 0."
        yield Diagnosis(NOTE, "scheduled messages", text, hint)
    if len(read.refusals) > MOST_REFUSALS:
        yield Diagnosis(NOTE, "scheduled messages", "more were refused", "The admin's list of them has them all.")


Examination = Callable[[Diagnostics], Iterator[Diagnosis]]
ON_THE_SERVER: tuple[Examination, ...] = (connections, idle_connections, lock_waits, stopping)
ON_TABLES: tuple[Examination, ...] = (indexes, gate, forwarded, clock, queue, handlers, refusals)
