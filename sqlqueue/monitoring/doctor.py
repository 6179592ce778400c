"""The doctor: judges the diagnostics, and advises. Pure: reads and changes nothing. Topics and groups are judged by
stats.attention, as on the admin's overview; what concerns this project's handlers is judged here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from django.utils import translation

from sqlqueue.core.effects import Count, registered
from sqlqueue.core.keys import did_you_mean
from sqlqueue.database.limits import OWN_CONNECTIONS
from sqlqueue.monitoring.diagnostics import Diagnostics
from sqlqueue.stats import attention, finding_kinds
from sqlqueue.stats.finding_commands import command_line
from sqlqueue.stats.survey import Survey

ERROR, WARNING, NOTE = finding_kinds.ERROR, finding_kinds.WARNING, finding_kinds.NOTE
OK: Final = "ok"

NEARLY_FULL = 0.8  # of the connections that the server allows
DETOUR_LATE = 30.0  # seconds
CLOCK_TOLERANCE = 1.0  # seconds
CLOCK_WRONG = 30.0  # seconds
ABOUT = {  # the title under which the doctor lists each kind of finding
    finding_kinds.NO_CONSUMERS: "consumers",
    finding_kinds.UNWRITABLE: "writes",
    finding_kinds.DEATHS: "consumers",
    finding_kinds.LATE_HEARTBEATS: "consumers",
    finding_kinds.AWAY: "groups",
    finding_kinds.PAUSED: "groups",
    finding_kinds.OUTSIDE_HOURS: "groups",
    finding_kinds.BUDGET_SPENT: "groups",
    finding_kinds.UNOWNED: "groups",
    finding_kinds.BEHIND: "groups",
    finding_kinds.FAILS: "groups",
    finding_kinds.FALLS_BEHIND: "groups",
    finding_kinds.EPOCH: "groups",
    finding_kinds.CHANGE: "topics",
    finding_kinds.STUCK: "stuck watermarks",
    finding_kinds.DEAD_LETTERS: "dead letters",
    finding_kinds.FAILING_TASK: "background tasks",
    finding_kinds.UNREAD: "topics",
    finding_kinds.REFUSED: "scheduled messages",
    finding_kinds.LATE: "scheduled messages",
    finding_kinds.SERVERS: "servers",
    finding_kinds.OPEN_TRANSACTION: "horizon",
}


class Diagnosis(NamedTuple):
    """A result of one examination. level: OK, NOTE, WARNING or ERROR; about: what was examined; text: what was found;
    hint: what to do; command: shows more of it, or does that."""

    level: str
    about: str
    text: str
    hint: str = ""
    command: str = ""


def examine(read: Diagnostics) -> list[Diagnosis]:
    """Return the results of every examination, at least one each."""
    tables = [] if read.pending else ON_TABLES
    return [diagnosis for examination in (migrations, *ON_THE_SERVER, *tables) for diagnosis in examination(read)]


def migrations(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the tables are those of this version."""
    if read.pending:
        hint = "python manage.py migrate sqlqueue (with --database if it is not the default one). Then ask again."
        yield Diagnosis(
            ERROR, "migrations", "the queue's tables are not up to date: nothing else can be examined", hint
        )
    else:
        yield Diagnosis(OK, "migrations", "the queue's tables are up to date")


def connections(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the server allows as many connections as the consumers take."""
    allowed, threads = read.limits.max_connections, read.settings.threads
    if allowed is None:
        yield Diagnosis(OK, "connections", "this database counts none")
        return
    own = OWN_CONNECTIONS + read.periodic + (read.detour is not None)
    needed = read.processes * (2 * threads + own)
    text = f"{read.processes} × (2 × {threads} threads + {own})"
    if read.others:  # as many processes of each: their handlers publish here, and relay to it
        needed += read.others * read.processes * 2 * threads
        text += f" + {read.others} × {read.processes} × 2 × {threads} of other databases"
    text += f" = {needed} for the consumers, "
    if read.limits.pooled:  # whose own limits it does not say
        text += f"which a pooler has to let in (max_client_conn); the server allows {allowed} to it and all others"
        yield Diagnosis(OK, "connections", text)
        return
    text += f"of {allowed}"
    if read.limits.connections is not None:
        text += f"; {read.limits.connections} are open now"
    hint = "Raise max_connections, or run fewer processes or threads; the web's workers need theirs, too."
    level = ERROR if needed > allowed else WARNING if needed > NEARLY_FULL * allowed else OK
    yield Diagnosis(level, "connections", text, "" if level == OK else hint)


def idle_connections(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the server closes idle connections that Django would still use."""
    idle, age = read.limits.idle_timeout, read.settings.conn_max_age
    found = False
    if idle is not None and (age is None or age >= idle) and not read.settings.health_checks:
        kept = "for ever" if age is None else f"for {age:g} s"
        text = f"CONN_MAX_AGE keeps connections {kept}, and the server closes idle ones after {idle:g} s"
        hint = "Set CONN_HEALTH_CHECKS = True, or a CONN_MAX_AGE below that: else requests fail on dead connections."
        found = True
        yield Diagnosis(WARNING, "idle connections", text, hint)
    if age == 0 and read.limits.max_connections is not None:
        text = "CONN_MAX_AGE is 0: a busy handler thread opens a connection each second"
        found = True
        yield Diagnosis(NOTE, "idle connections", text, "Set CONN_MAX_AGE to some minutes.")
    if not found:
        yield Diagnosis(OK, "idle connections", "no process is left with a closed one")


def lock_waits(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether a lock wait ends before a handler's visibility timeout does."""
    wait = read.limits.lock_wait
    slower = [one for one in read.handlers if wait is not None and wait >= one.visibility_timeout]
    for handler in slower:
        text = f"a statement may wait for a lock for {wait:g} s, {handler.name} may run for"
        text = f"{text} {handler.visibility_timeout:g} s: it overruns before the database gives up"
        hint = "Lower innodb_lock_wait_timeout (PostgreSQL: lock_timeout; SQLite: OPTIONS['timeout']),"
        yield Diagnosis(WARNING, "lock waits", text, f"{hint} or raise its visibility_timeout.")
    if not slower:
        limit = "have no limit" if wait is None else f"end after {wait:g} s"
        yield Diagnosis(OK, "lock waits", f"{limit}; the engine's own give up after 5 s")


def stopping(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether a handler may run longer than a stopping process waits for it."""
    longer = [one for one in read.handlers if one.visibility_timeout > read.settings.shutdown_timeout]
    if longer:
        longest = max(longer, key=lambda handler: handler.visibility_timeout)
        text = f"a stop waits for handlers for {read.settings.shutdown_timeout:g} s (SHUTDOWN_TIMEOUT), {longest.name}"
        others = f" and {len(longer) - 1} more" if len(longer) > 1 else ""
        text = f"{text}{others} may run for {longest.visibility_timeout:g} s"
        hint = (
            "What is cut off is delivered again. If that is costly, raise SHUTDOWN_TIMEOUT and the service manager's."
        )
        yield Diagnosis(NOTE, "stopping", text, hint)
    else:
        yield Diagnosis(OK, "stopping", f"handlers are waited for up to {read.settings.shutdown_timeout:g} s")


def indexes(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the indexes exist that the statements need."""
    for name in read.missing_indexes:
        hint = "Create it again (python manage.py sqlmigrate sqlqueue 0001 shows how): without it, reads scan the log."
        yield Diagnosis(ERROR, "indexes", f"{name} is missing", hint)
    if not read.missing_indexes:
        yield Diagnosis(OK, "indexes", "all are present")


def gate(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the rows of the publish gate exist."""
    if read.missing_slots > 0:
        text = f"{read.missing_slots} rows of sqlqueue_publish_gate are missing: publishing is refused at times"
        yield Diagnosis(ERROR, "publish gate", text, "python manage.py migrate sqlqueue fills it again.")
    else:
        yield Diagnosis(OK, "publish gate", "complete")


def detour(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine, in a cluster of several writable servers, whether what is published on all of them enters the log."""
    if read.detour is None:
        return
    found = read.detour
    if found.oldest > DETOUR_LATE or (found.writer.startswith("-") and found.waiting):
        text = f"{found.waiting} messages wait, the oldest for {found.oldest:.0f} s, to enter through {found.writer!r}"
        hint = "Let a consumer process run on that server; one that runs on another one takes over once none does."
        yield Diagnosis(ERROR, "named server", text, hint)
    else:
        yield Diagnosis(
            OK, "named server", f"messages enter through {found.writer!r}; {found.waiting} are on their way"
        )


def clock(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine whether the host's and the database's clocks agree."""
    ahead, uncertainty = read.clock.ahead, read.clock.uncertainty
    off = max(0.0, abs(ahead) - uncertainty)
    relation = "ahead of" if ahead > 0 else "behind"
    text = f"this host's is {abs(ahead):.3f} s {relation} the database's (± {uncertainty:.3f} s)"
    if off <= CLOCK_TOLERANCE:
        yield Diagnosis(OK, "clocks", text)
        return
    hint = "Deliveries are not affected; times that you compute (publish(at=…)) or compare in logs are. Correct NTP."
    yield Diagnosis(WARNING if off > CLOCK_WRONG else NOTE, "clocks", text, hint)


def queue(read: Diagnostics) -> Iterator[Diagnosis]:
    """Examine topics and groups: what needs attention, in English as the rest is, and what is well."""
    assert read.survey is not None
    with translation.override(None):
        shared = attention.findings(read.survey)
    about = ABOUT | {figure.name: effect.subject for effect in registered() for figure in effect.figures}
    found = [Diagnosis(one.severity, about[one.kind], one.text, one.advice, one.command) for one in shared]
    found += [*_unhandled(read, read.survey), *_never_published(read, read.survey), *_refusals(read)]
    for subject, text in _well(read.survey).items():
        yield from [one for one in found if one.about == subject] or [Diagnosis(OK, subject, text)]


def _well(seen: Survey) -> dict[str, str]:
    """Return the text for each subject without findings."""
    return {
        "writes": "the database takes them",
        "consumers": f"{seen.subscribers} alive",
        "background tasks": "none fails again and again",
        "groups": f"all {len(seen.groups)} are served or have nothing to do",
        "stuck watermarks": "none stands still",
        "dead letters": "there are none",
        "topics": f"all {len(seen.topics)} have a group that reads them",
        "scheduled messages": "none is refused or overdue",
        **_well_with_effects(seen),
        "servers": "consumers write to one",
        "horizon": f"{seen.horizon_lag} offsets behind the log's end",
    }


def _well_with_effects(seen: Survey) -> dict[str, str]:
    found = {}
    for effect in registered():
        if effect.figures:
            with translation.override(None):
                found[effect.subject] = ", ".join(figure.text(_total(seen, figure.name)) for figure in effect.figures)
    return found


def _total(seen: Survey, name: str) -> Count:
    counts = [topic.counts[name] for topic in seen.topics if name in topic.counts]
    return Count(sum(one.count for one in counts), any(one.more for one in counts))


def _unhandled(read: Diagnostics, seen: Survey) -> Iterator[Diagnosis]:
    """Examine whether every group that no process serves has a handler."""
    known = {(handler.topic, handler.group) for handler in read.handlers}
    for group in seen.groups:
        if group.subscribers or (group.topic, group.group) in known:
            continue
        text = f"{group.group!r} of {group.topic!r} has no handler here, and no process serves it"
        remove = command_line(["queuegroup", "remove", group.topic, group.group], seen.database)
        hint = "If it is no longer wanted, remove it. If a subscribe() loop or another project serves it: start that."
        yield Diagnosis(WARNING, "groups", f"{text}: it holds back collection", hint, remove)


def _never_published(read: Diagnostics, seen: Survey) -> Iterator[Diagnosis]:
    """Examine whether every topic that a handler reads exists."""
    handled, names = {handler.topic for handler in read.handlers}, {topic.name for topic in seen.topics}
    for name in sorted(handled - names):
        near = did_you_mean(name, names)
        hint = f"Perhaps nothing has happened yet.{near if 'Did you mean' in near else ''}"
        yield Diagnosis(NOTE, "topics", f"{name!r} has a handler, and nothing was ever published to it", hint)


def _refusals(read: Diagnostics) -> Iterator[Diagnosis]:
    """Say why scheduled messages were refused."""
    for refusal in read.refusals:
        text = f"id {refusal.id} for topic {refusal.topic!r} was refused: {refusal.reason}"
        hint = "Correct or withdraw it in the admin (Scheduled messages); or correct its row and set refused = 0."
        yield Diagnosis(NOTE, "scheduled messages", text, hint)
    if read.more_refusals:
        yield Diagnosis(NOTE, "scheduled messages", "more were refused", "The admin's list of them has them all.")


ON_THE_SERVER: tuple[Callable[[Diagnostics], Iterator[Diagnosis]], ...] = (
    connections,
    idle_connections,
    lock_waits,
    stopping,
)
ON_TABLES: tuple[Callable[[Diagnostics], Iterator[Diagnosis]], ...] = (indexes, gate, detour, clock, queue)
