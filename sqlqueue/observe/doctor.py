"""The doctor: judges what was read (facts.py), and says what to do. Pure: asks nothing, changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from sqlqueue.core.keys import did_you_mean
from sqlqueue.observe.facts import Facts
from sqlqueue.observe.survey import GroupSurvey

ERROR: Final = "error"  # something does not work, or will not
WARNING: Final = "warning"  # it works, and should be looked at
NOTE: Final = "note"  # worth knowing
OK: Final = "ok"

OWN_CONNECTIONS = 6  # of a consumer process: the control thread and its five residents
FULL = 0.8  # of the connections that the server allows
CLOCK_TOLERANCE = 1.0  # seconds
CLOCK_WRONG = 30.0
HELD_UP = 60.0  # seconds for which a transaction that publishes may stay open before it is worth a warning
STUCK_HINTS = {
    "failing": "That message fails again and again: see its error in the admin; mend the handler, or ack it there.",
    "standing": "Nothing is settled there: see what its consumer does (queuestatus, event=delivery_failed in the log).",
    "full": "So many of its messages fail that nothing new is read there: mend the handler, or what it needs.",
    "held": "So many were delivered beyond an open transaction that nothing new is read: find that, and end it.",
}


class Finding(NamedTuple):
    """level: one of the words above; about: what was examined; text: what was found; hint: what to do."""

    level: str
    about: str
    text: str
    hint: str = ""


def examine(facts: Facts) -> list[Finding]:
    """Return what every examination has found: at least one finding each."""
    tables = [] if facts.pending else ON_TABLES
    return [finding for look in (migrations, *ON_THE_SERVER, *tables) for finding in look(facts)]


def migrations(facts: Facts) -> Iterator[Finding]:
    """Are the tables those of this version?"""
    if facts.pending:
        hint = "python manage.py migrate sqlqueue (with --database if it is not the default one). Then ask again."
        yield Finding(ERROR, "migrations", "the queue's tables are not up to date: nothing else can be examined", hint)
    else:
        yield Finding(OK, "migrations", "the queue's tables are up to date")


def connections(facts: Facts) -> Iterator[Finding]:
    """Does the server allow as many connections as the consumers take?"""
    allowed, threads = facts.limits.max_connections, facts.manners.threads
    if allowed is None:
        yield Finding(OK, "connections", "this database counts none")
        return
    needed = facts.processes * (threads + OWN_CONNECTIONS)
    text = f"{facts.processes} × ({threads} threads + {OWN_CONNECTIONS}) = {needed} for the consumers, of {allowed}"
    if facts.limits.connections is not None:
        text += f"; {facts.limits.connections} are open now"
    hint = "Raise max_connections, or run fewer processes or threads; the web's workers need theirs, too."
    level = ERROR if needed > allowed else WARNING if needed > FULL * allowed else OK
    yield Finding(level, "connections", text, "" if level == OK else hint)


def idle_connections(facts: Facts) -> Iterator[Finding]:
    """Who closes an idle connection first: the server, or whoever would still use it?"""
    idle, age = facts.limits.idle_timeout, facts.manners.conn_max_age
    found = False
    if idle is not None and (age is None or age >= idle) and not facts.manners.health_checks:
        kept = "for ever" if age is None else f"for {age:g} s"
        text = f"CONN_MAX_AGE keeps connections {kept}, and the server closes idle ones after {idle:g} s"
        hint = "Set CONN_HEALTH_CHECKS = True, or a CONN_MAX_AGE below that: else requests fail on dead connections."
        found = True
        yield Finding(WARNING, "idle connections", text, hint)
    if age == 0 and facts.limits.max_connections is not None:
        text = "CONN_MAX_AGE is 0: a busy handler thread opens a connection each second"
        found = True
        yield Finding(NOTE, "idle connections", text, "Set CONN_MAX_AGE to some minutes.")
    if not found:
        yield Finding(OK, "idle connections", "nobody is left with a closed one")


def lock_waits(facts: Facts) -> Iterator[Finding]:
    """Does a statement that waits for a lock give up before its handler's time is up?"""
    wait = facts.limits.lock_wait
    slower = [one for one in facts.handlers if wait is not None and wait >= one.visibility_timeout]
    for handler in slower:
        text = f"a statement may wait for a lock for {wait:g} s, {handler.name} may run for"
        text = f"{text} {handler.visibility_timeout:g} s: it overruns before the database gives up"
        hint = "Lower innodb_lock_wait_timeout (PostgreSQL: lock_timeout; SQLite: OPTIONS['timeout']),"
        yield Finding(WARNING, "lock waits", text, f"{hint} or raise its visibility_timeout.")
    if not slower:
        limit = "have no limit" if wait is None else f"end after {wait:g} s"
        yield Finding(OK, "lock waits", f"{limit}; the engine's own give up after 5 s")


def stopping(facts: Facts) -> Iterator[Finding]:
    """May a handler run longer than a stopping process waits for it?"""
    longer = [one for one in facts.handlers if one.visibility_timeout > facts.manners.shutdown_timeout]
    if longer:
        longest = max(longer, key=lambda handler: handler.visibility_timeout)
        text = f"a stop waits for handlers for {facts.manners.shutdown_timeout:g} s (SHUTDOWN_TIMEOUT), {longest.name}"
        others = f" and {len(longer) - 1} more" if len(longer) > 1 else ""
        text = f"{text}{others} may run for {longest.visibility_timeout:g} s"
        hint = (
            "What is cut off is delivered again. If that is costly, raise SHUTDOWN_TIMEOUT and the service manager's."
        )
        yield Finding(NOTE, "stopping", text, hint)
    else:
        yield Finding(OK, "stopping", f"handlers are waited for up to {facts.manners.shutdown_timeout:g} s")


def indexes(facts: Facts) -> Iterator[Finding]:
    """Are the indexes there that the statements count on?"""
    for name in facts.missing_indexes:
        hint = "Create it again (python manage.py sqlmigrate sqlqueue 0001 shows how): without it, reads scan the log."
        yield Finding(ERROR, "indexes", f"{name} is missing", hint)
    if not facts.missing_indexes:
        yield Finding(OK, "indexes", "all are present")


def gate(facts: Facts) -> Iterator[Finding]:
    """Are the gate's rows there?"""
    if facts.missing_slots > 0:
        text = f"{facts.missing_slots} rows of sqlqueue_publish_gate are missing: publishing is refused at times"
        yield Finding(ERROR, "publish gate", text, "python manage.py migrate sqlqueue fills it again.")
    else:
        yield Finding(OK, "publish gate", "complete")


def clock(facts: Facts) -> Iterator[Finding]:
    """Are the host's and the database's clocks one?"""
    ahead, doubt = facts.clock.ahead, facts.clock.doubt
    off = max(0.0, abs(ahead) - doubt)
    text = f"this host's is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the database's (± {doubt:.3f} s)"
    if off <= CLOCK_TOLERANCE:
        yield Finding(OK, "clocks", text)
        return
    hint = "Deliveries do not mind; times that you compute (publish(at=…)) and compare in logs do. Mend NTP."
    yield Finding(WARNING if off > CLOCK_WRONG else NOTE, "clocks", text, hint)


def consumers(facts: Facts) -> Iterator[Finding]:
    """Is there somebody for every group, and do all get on?"""
    assert facts.survey is not None
    known = {(handler.topic, handler.group) for handler in facts.handlers}
    found = False
    for group in facts.survey.groups:
        for finding in _group(facts, group, (group.topic, group.group) in known):
            found = True
            yield finding
    if not found:
        alive = facts.survey.subscribers
        yield Finding(OK, "groups", f"all {len(facts.survey.groups)} are served or have nothing to do; {alive} alive")


def _group(facts: Facts, group: GroupSurvey, handled: bool) -> Iterator[Finding]:
    name = f"group {group.group!r} of topic {group.topic!r}"
    lag = f"{'some ' if group.estimated else ''}{group.lag} messages"
    remove = f"python manage.py queuegroup remove {group.topic} {group.group}"
    if group.away and handled:
        hint = "Start runconsumers for it (or see why it died). Collection waits for it until it has read them."
        yield Finding(WARNING, "groups", f"{name} has {lag} to read and no consumer process", hint)
    elif not group.subscribers and not handled:
        hint = f"If it is no longer wanted: {remove}. If a subscribe() loop or another project serves it: start that."
        text = f"{name} has no handler here and nobody serves it: it holds back collection"
        yield Finding(WARNING, "groups", f"{text} ({lag})", hint)
    if group.paused and group.lag:
        text = f"{name} is paused, with {lag} to read; collection waits for it"
        yield Finding(NOTE, "groups", text, "python manage.py queueresume, for the group or the topic.")
    retention = next((topic.retention for topic in facts.survey.topics if topic.name == group.topic), None)  # type: ignore[union-attr]
    if group.subscribers and retention is not None and (group.oldest_age or 0.0) > retention:
        text = f"{name} is behind by {group.oldest_age:.0f} s, longer than messages are to be kept ({retention:.0f} s)"
        hint = "The log grows until it has caught up: more processes or threads, or see what is slow (queuestatus)."
        yield Finding(WARNING, "groups", text, hint)
    for stuck in group.stuck if group.subscribers else ():
        place = f"{name}: partition {stuck.partition} stands at offset {stuck.offset} for {stuck.seconds:.0f} s"
        level = ERROR if stuck.why == "full" else WARNING
        yield Finding(level, "stuck watermarks", place, STUCK_HINTS[stuck.why])


def tasks(facts: Facts) -> Iterator[Finding]:
    """Do the consumers' background tasks get on?"""
    assert facts.survey is not None
    for text in facts.survey.failing:
        hint = "It fails at every turn: see event=resident_failed in that process's log for the whole error."
        yield Finding(ERROR, "background tasks", text, hint)
    if not facts.survey.failing:
        yield Finding(OK, "background tasks", "none fails again and again")


def topics(facts: Facts) -> Iterator[Finding]:
    """Does somebody read every topic, and is there every topic that somebody would read?"""
    assert facts.survey is not None
    handled = {handler.topic for handler in facts.handlers}
    names = {topic.name for topic in facts.survey.topics}
    found = False
    for name in facts.unread:
        found = True
        if name in handled:
            text, hint = "has messages, and its handlers have never run", "Start runconsumers."
        else:
            text = "has messages, and nobody reads it: they are collected unread when retention ends"
            hint = f"Write a @consumer({name!r}), or stop publishing to it.{_near(name, handled)}"
        yield Finding(WARNING, "topics", f"{name!r} {text}", hint)
    for name in sorted(handled - names):
        found = True
        text = f"{name!r} has a handler, and nothing was ever published to it"
        yield Finding(NOTE, "topics", text, f"Perhaps nothing has happened yet.{_near(name, names)}")
    if not found:
        yield Finding(OK, "topics", f"all {len(names)} have somebody who reads them")


def _near(name: str, known: set[str]) -> str:
    hint = did_you_mean(name, known - {name})
    return hint if "Did you mean" in hint else ""


def scheduled(facts: Facts) -> Iterator[Finding]:
    """Do scheduled messages come into the log?"""
    assert facts.survey is not None
    found = False
    for refusal in facts.refusals:
        found = True
        text = f"id {refusal.id} for topic {refusal.topic!r} was refused: {refusal.reason}"
        hint = "Correct its row and set refused = 0, or delete it (sqlqueue_scheduled_message)."
        yield Finding(WARNING, "scheduled messages", text, hint)
    if facts.more_refusals:
        yield Finding(NOTE, "scheduled messages", "more were refused", "The others are in the same table.")
    for topic in facts.survey.topics:
        if topic.refused > 1:
            text = f"{topic.refused} for topic {topic.name!r} were refused in all"
            yield Finding(NOTE, "scheduled messages", text, "The others are in the same table.")
        if topic.overdue:
            found = True
            text = f"{topic.overdue} for topic {topic.name!r} are overdue by a minute and more"
            hint = "Consumer processes move them: start one, or see event=resident_failed in its log."
            yield Finding(WARNING, "scheduled messages", text, hint)
    if not found:
        yield Finding(OK, "scheduled messages", "none is refused or overdue")


def servers(facts: Facts) -> Iterator[Finding]:
    """Do all consumers write to one server?"""
    assert facts.survey is not None
    if len(seen := facts.survey.servers) > 1:
        text = f"consumers write to {len(seen)} servers: {', '.join(seen)}"
        hint = "What is published through one of them is missed by consumers of another: write to one server only."
        hint = f"{hint} (Right after a failover the former one is still named, for LEASE_DURATION.)"
        yield Finding(ERROR, "servers", text, hint)
    else:
        yield Finding(OK, "servers", "consumers write to one")


def horizon(facts: Facts) -> Iterator[Finding]:
    """Does a transaction that publishes stay open?"""
    assert facts.survey is not None
    if facts.survey.horizon_age > HELD_UP:
        text = f"it is {facts.survey.horizon_lag} offsets behind, for {facts.survey.horizon_age:.0f} s"
        hint = "A transaction that has published is still open: find it in the server's process list, and end it."
        yield Finding(WARNING, "horizon", text, hint)
    else:
        yield Finding(OK, "horizon", f"{facts.survey.horizon_lag} offsets behind the log's end")


ON_THE_SERVER: tuple[Callable[[Facts], Iterator[Finding]], ...] = (connections, idle_connections, lock_waits, stopping)
ON_TABLES: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    indexes,
    gate,
    clock,
    consumers,
    tasks,
    topics,
    scheduled,
    servers,
    horizon,
)
