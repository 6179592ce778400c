"""Every statement that a real workload runs finds its rows by an index; exceptions are named, with reasons."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from unittest.mock import patch

import factory
import pytest
from django.db import connection, transaction
from django.db.models import F, Max

from sqlqueue import Postpone, Reject, Retry, cancel, cancel_all, get_scheduled, publish, publish_many
from sqlqueue.consumers.declare.registry import build
from sqlqueue.consumers.engine.subscriber import Subscriber
from sqlqueue.consumers.handlers.inline import InlinePool
from sqlqueue.database.horizon import SHARED, highest_offset
from sqlqueue.database.scheduling import REPLACE, TAKE
from sqlqueue.database.server_identity import ServerIdentity
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.acquire import acquire
from sqlqueue.log import groups, retention
from sqlqueue.log import unique as unique_rows
from sqlqueue.log.collect import OLDEST, collect, report_absent
from sqlqueue.log.fetch import ABOVE, FETCH, FETCH_TO, LOOK, NEWEST, POLL_HEAD, REQUESTED, SCAN, WATCH
from sqlqueue.log.layouts import leased, retire
from sqlqueue.log.messages import LAST, SIZES, WHOLE
from sqlqueue.log.publish import NewMessage
from sqlqueue.log.schedule import move_due
from sqlqueue.log.status import offset_before
from sqlqueue.models import (
    AckedMark,
    BlockedRange,
    ConsumerGroup,
    DeliveryState,
    Message,
    Offset,
    PartitionLease,
    Topic,
    UniqueMessage,
)
from sqlqueue.operations import move, replay, requests, reschedule_requests
from sqlqueue.operations.reschedule_requests import WaitingDeliveries
from sqlqueue.stats import counting, throughput
from sqlqueue.stats.survey import survey, survey_with_partitions
from tests import epochs
from tests.database.plans import TABLES, Recorder, full_scans, plan_of
from tests.database.statistics import left_alone, skew, states
from tests.factories import (
    ActivityFactory,
    BlockedRangeFactory,
    CollectedMessageFactory,
    DeadLetterFactory,
    DeliveryStateFactory,
    OffsetFactory,
    PartitionLeaseFactory,
    ReceiptFactory,
    ResultFactory,
    ScheduledMessageFactory,
    TopicFactory,
    now,
    this_minute,
)
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

SMALL = {
    "sqlqueue_topic": "a row for each topic",
    "sqlqueue_layout": "two or three rows for each change of a topic's partitions",
    "sqlqueue_consumer_group": "a row for each group of each topic",
    "g": "the same, where the statement that looks for unique messages names it so",
    "sqlqueue_subscriber_heartbeat": "a row for each live consumer process",
    "sqlqueue_publish_gate": "258 rows, and a probe reads all of them by design",
    "given": "the parameters of a statement, as a table",
}
# Statements of people's actions, not of the engine: bounded by a LIMIT, and as rare as a click.
BY_OPERATOR = ("original_topic",)


@pytest.fixture
def topics(settings: object) -> Iterator[None]:
    """A topic of 8 partitions, one of 40, and a group that is away; the server gathers no statistics by itself."""
    settings.SQLQUEUE = {
        "TOPICS": {
            "t": {"partitions": 8, "retention": 3600.0, "history": "all"},
            "many": {"partitions": 40, "retention": 3600.0},
        },
        "STRICT_TOPICS": False,
        "WAKE": False,
        "LEASE_DURATION": 3600,
    }
    publish_many("t", [NewMessage(n, key=f"old{n % 40}") for n in range(100)])
    Message.objects.update(created_at=datetime.now(timezone.utc) - timedelta(days=1))
    publish_many("many", range(100))
    for topic in ("t", "many"):
        groups.register(LOG, "away", topic)
    with left_alone():
        yield


def fill() -> None:
    """Give every table enough rows that the optimizer has a reason; it knows of others, see `states`."""
    skew()
    publish_many("t", [NewMessage(n, key=f"old{n % 400}") for n in range(6_000)])
    publish_many("many", range(3_000))
    later = datetime.now(timezone.utc) + timedelta(days=1)
    places = [
        {"consumer_group": f"filled{group}" if group else "g", "topic": topic, "partition": partition}
        for group in range(20)
        for topic, partitions in (("t", 8), ("many", 40))
        for partition in range(partitions)
    ]
    for model in (PartitionLease, Offset, DeliveryState, BlockedRange):
        model.objects.all().delete()
    each = {
        name: factory.Iterator([place[name] for place in places]) for name in ("consumer_group", "topic", "partition")
    }
    PartitionLeaseFactory.insert(len(places), **each, holder=factory.Iterator([f"h{n}" for n in range(60)]))
    OffsetFactory.insert(len(places), **each, position=1)
    for offset in range(4):
        DeliveryStateFactory.insert(len(places), **each, message_offset=offset, acked=offset % 2)
        BlockedRangeFactory.insert(len(places), **each, partition_key=f"k{offset}")
    ScheduledMessageFactory.insert(2_000, due_at=later)
    long_ago = datetime.now(timezone.utc) - timedelta(days=1)
    keys = {f"{number:064x}": f"key{number}" for number in range(2_000)}
    rows = [
        UniqueMessage(digest=digest, topic="t", partition_key=key, message_id="gone", published_at=long_ago)
        for digest, key in keys.items()
    ]
    UniqueMessage.objects.bulk_create(rows)
    ReceiptFactory.insert(2_000, started_at=later)
    CollectedMessageFactory.insert(2_000, kept_until=later)
    marks = [
        AckedMark(topic=f"t{n % 16 or ''}", partition=n // 16 % 16, priority=0, offset_acked=n + 1)
        for n in range(2_000)
    ]
    AckedMark.objects.bulk_create(marks)
    ResultFactory.insert(2_000, expires_at=later)  # MySQL takes any plan for a table without rows


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Records what the test's connection runs."""
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        yield recorder


def handler(delivery: object) -> None:
    """Fail in every way, depending on the payload."""
    kind = delivery.payload % 10 if isinstance(delivery.payload, int) else 0
    if kind == 1 and delivery.attempt == 1:
        raise Retry(delay=0)
    if kind == 2:
        raise Reject("never")
    if kind == 3 and delivery.attempt == 1:
        raise ValueError
    if kind == 4 and delivery.offset % 2:
        raise Postpone(delay=3600)


def host(handle=handler, **options: object) -> Subscriber:
    made = build("t", {"group": "g", "backoff": 0.0, "start": "latest", **options})
    subscriber = Subscriber([replace(made, handler=handle)], pool=InlinePool, background_tasks=False)
    subscriber.start()
    return subscriber


def work(subscriber: Subscriber, turns: int = 40) -> None:
    for _ in range(turns):
        subscriber._poll_at = 0.0
        subscriber.run_once()


def named() -> None:
    """Schedule, replace, look at and cancel messages by their names."""
    for delay in (3600.0, 1800.0, None):
        publish("t", 0, key="k", id="named", delay=delay, on_conflict="replace")
    several = [NewMessage(n, key="k", id=f"named{n}", delay=3600.0, on_conflict="replace") for n in range(3)]
    for _ in range(2):
        publish_many("t", several)
    get_scheduled("t", key="k", id="named0")
    assert cancel("t", key="k", id="named0")
    assert cancel_all("t", key="k") == 2


def unique() -> None:
    """Publish unique messages that are new, ignored, replaced and settled, alone and in bulk, and purge their rows."""
    for number in range(3):
        published = publish("t", 5, key="k", unique_for="key")
        some = [NewMessage(5, key=f"u{n}", unique_for=60, delay=3600.0, on_conflict="replace") for n in range(20)]
        publish_many("t", some)
        publish("t", 5, key="u1", unique_for=60, on_conflict="replace")
        if number == 1:
            Message.objects.filter(offset=published.offset).delete()
    assert unique_rows.purge(LOG, "").beyond == ""


def workload() -> None:
    """Publish, consume, fail, take over, schedule, balance, poll, move, replay, collect."""
    subscriber = host()
    publish("t", 1, key="k", id="once")
    publish("t", 1, key="k", id="once")
    publish_many("t", [NewMessage(n, key=f"k{n % 7}") for n in range(60)])
    publish("t", 0, delay=0.0)
    move_due(LOG)
    named()
    unique()
    work(subscriber)
    heartbeat.beat(LOG, subscriber.name, [("g", "t")], 3600)
    release.renew(LOG, subscriber.name, 3600)
    release.held(LOG, subscriber.name)
    # It dies with messages in flight, and another one takes over.
    publish_many("t", range(20))
    for subscription in subscriber.subscriptions:
        for stream in list(subscription.assigned.values()):
            Offset.objects.filter(id=stream.id).update(claimed_to=F("claimed_to") + 10_000)
    release.free(LOG, subscriber.name)
    heartbeat.leave(LOG, subscriber.name)
    successor = host(atomic=True)
    work(successor)
    successor.anything_due()
    successor.stop(timeout=0.0)
    successor.close()
    batches = host(lambda deliveries: None, batch=True, atomic=True)
    publish_many("t", range(30))
    work(batches, 10)
    batches.stop(timeout=0.0)
    batches.close()
    replay.replay("t", limit=3)
    move.move(LOG, "g", "t", ConsumerGroup.objects.get(consumer_group="g", topic="t").start + 10, partition=1)
    report_absent(LOG)
    groups.remove(LOG, "away", "t")
    collect(LOG, subscriber.reader.log_end.horizon)
    with transaction.atomic():
        retention.released_to(LOG, "t", 1, 0, 1_000, 3_600.0)
    heartbeat.remove_dead(LOG, 30.0)
    leases = PartitionLease.objects.filter(topic="t", consumer_group="g")
    leases.update(holder="gone", valid_until=now() + timedelta(days=1))
    assert release.shorten_stale(LOG, 30.0) > 0
    groups.remove(LOG, "g", "t")


def test_rescheduling_of_a_key_looks_at_no_whole_table(topics: None, recorder: Recorder) -> None:
    fill()
    message = Message.objects.filter(topic="t").latest("offset")
    groups.register(LOG, "filled1", "t")
    DeliveryStateFactory(
        consumer_group="filled1",
        topic="t",
        partition=message.partition,
        message_offset=message.offset,
        invisible_until=now() + timedelta(days=1),
    )
    recorder.statements.clear()
    made = reschedule_requests.request_rescheduling(LOG, WaitingDeliveries("t", "filled1", key=message.partition_key))
    while requests.carry_out(LOG):
        pass
    made.refresh_from_db()
    assert made.done == 1
    statements = [one for one in recorder.statements.values() if "delivery_state" in one[0]]
    assert sum("partition_key" in sql for sql, _ in statements) >= 2
    for state in states():
        for sql, params in statements:
            assert not [found for found in full_scans(sql, params) if not small(found)], (state, sql)


def test_the_walk_through_epochs_looks_at_no_whole_table(topics: None, recorder: Recorder) -> None:
    fill()
    epochs.alter("t", 5)
    recorder.statements.clear()
    groups.start_all(LOG, "t")
    numbers = range(8 + 5)
    options = {"priorities": 1, "lease_duration": 3600, "horizon": 0}
    taken = acquire(LOG, "me", "away", "t", numbers, **options)
    assert {one.ref.partition for one in taken} == set(range(8))
    assert not leased(LOG, "away", "t").more
    move.move(LOG, "away", "t", Message.objects.aggregate(last=Max("offset"))["last"])
    groups.start_all(LOG, "t")
    assert len(acquire(LOG, "me", "away", "t", numbers, **options)) == len(numbers)
    assert retire(LOG, "t") == []
    known = dict(recorder.statements)
    Message.objects.filter(topic="t").delete()
    recorder.statements = known
    assert retire(LOG, "t") == [0]
    statements = [one for one in recorder.statements.values() if not excepted(one[0])]
    for state in states():
        for sql, params in statements:
            assert not [scan for scan in full_scans(sql, params) if not of_a_small_one(scan)], (state, sql)


def excepted(sql: str) -> bool:
    tables = set(re.findall(r"sqlqueue_[a-z_]+(?=[`\" ])", sql)) & {m._meta.db_table for m in TABLES}
    return tables <= set(SMALL) or any(word in sql for word in BY_OPERATOR)


def of_a_small_one(scan: str) -> bool:
    return any(re.search(rf"\b{table}\b", scan) for table in SMALL)


def test_no_statement_of_a_workload_reads_a_whole_table_and_the_hot_ones_use_their_index(
    topics: None, recorder: Recorder
) -> None:
    workload()
    statements = list(recorder.statements.values())
    assert len(statements) > 40
    for table in (*(model._meta.db_table for model in TABLES), *SMALL):
        assert any(table in sql for sql, _ in statements), f"the workload says nothing of {table}"
    fill()
    hot = hot_statements() if connection.vendor != "sqlite" else {}
    scans = []
    for state in states():
        for sql, params in statements:
            if not excepted(sql) and (found := [scan for scan in full_scans(sql, params) if not of_a_small_one(scan)]):
                scans.append(f"{state}: {' '.join(sql.split())[:300]} → {found}")
        for part, key in hot.items():
            found = [item for item in statements if part in " ".join(item[0].split())]
            assert found, part
            for sql, params in found:
                used = indexes_of(sql, params)
                assert used <= {key}, f"{state}: {sql}: {used}"
    assert not scans, "\n".join(scans)


def hot_statements() -> dict[str, str]:
    """Return a part of each statement that must use the index that was made for it, with that."""
    words = LOG.dialect
    wanted = {
        words.sql("WHERE {beyond} ORDER BY {ascending} LIMIT %s"): "sqlqueue_message_fetch",
        words.sql("WHERE {within} ORDER BY {ascending} LIMIT %s"): "sqlqueue_message_fetch",
        words.sql("SELECT topic, partition, priority, COUNT(*) FROM sqlqueue_message"): primary_key("sqlqueue_message"),
        words.sql("UPDATE sqlqueue_offset SET position = {greatest}(position"): primary_key("sqlqueue_offset"),
        words.sql(words.delete("sqlqueue_delivery_state", "message_offset", 1))[:40]: "sqlqueue_state_message",
        words.sql(release.MINE): "sqlqueue_lease_holder",
    }
    if connection.vendor == "mysql":  # the lock that comes first decides whether the scheduler and a publisher deadlock
        wanted |= {words.sql(text.partition("{due}")[0]): "PRIMARY" for text in (REPLACE, TAKE)}
        # Likewise renewing, or shortening, and acquiring.
        wanted |= {
            words.sql(" ".join(text.partition("{marks}")[0].split())): "PRIMARY"
            for text in (release.RENEW, release.SHORTEN)
        }
    return wanted


def primary_key(table: str) -> str:
    return "PRIMARY" if connection.vendor == "mysql" else f"{table}_pkey"


def indexes_of(sql: str, params: tuple) -> set[object]:
    """Return the indexes by which a statement finds the rows of its table."""
    if connection.vendor == "postgresql":
        return {node["Index Name"] for node in plan_of(sql, params) if "Index Name" in node and not node["subquery"]}
    rows = [row for row in plan_of(sql, params) if row["select_type"] not in ("SUBQUERY", "UNION RESULT")]
    return {row["key"] for row in rows} - {None}


@pytest.mark.database("postgresql")
@pytest.mark.parametrize("place", ["from the beginning", "near the end", "at the end"])
def test_a_long_and_uneven_history_leads_no_read_astray(topics: None, place: str) -> None:
    """Left to itself PostgreSQL would walk the primary key through everybody's messages: see how it is asked instead.

    Its planner has all its freedom here, and knows the tables.
    """
    publish("rare", 0)
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_message (topic, partition, message_id, payload)"
            " SELECT CASE WHEN n % 1000 < 990 THEN 't' WHEN n % 1000 < 999 THEN 'many' ELSE 'rare' END,"
            " n % 8, n, '1'"
            " FROM GENERATE_SERIES(1, 150000) AS n"
        )
        cursor.execute("ANALYZE sqlqueue_message")
    highest = highest_offset(LOG)
    low = {"from the beginning": 0, "near the end": highest - 5_000, "at the end": highest}[place]
    words, server = LOG.dialect, ServerIdentity(LOG)
    rule = retention.released(Topic(retention=1.0, purged_to=1))
    assert rule
    for topic in ("t", "many", "rare", "away"):
        for statement, values in (
            (
                FETCH.replace("{columns}", "payload"),
                (0, *words.range_values(topic, 3, 0, low), 500),
            ),
            (OLDEST.replace("{released}", rule.sql), (3, 0, 0, 0, *words.range_values(topic, 3, 0, 0, low), 1_000)),
            (OLDEST.replace("{released}", rule.sql), (3, 0, 0, 0, *words.range_values(topic, 3, 0, 0, LAST), 1)),
            (ABOVE, (0, *words.range_values(topic, 3, 0, low))),
        ):
            text = words.sql(statement)
            assert indexes_of(text, values) == {"sqlqueue_message_fetch"}, statement
            if statement.startswith("SELECT %s, payload"):
                text, values = server.proven(words.branch.format(text), values, 2, 0)
                assert indexes_of(words.sql(text), tuple(values)) == {"sqlqueue_message_fetch"}
    for topic in ("t", "many"):  # a small topic may be read as a whole
        within = words.range_values(topic, 3, 0, low, low + 10_000)
        assert indexes_of(words.sql(LOOK), (0, *within, 20_000)) == {"sqlqueue_message_fetch"}
        assert indexes_of(words.sql(SCAN), (*within, 5_000)) == {"sqlqueue_message_fetch"}
    condition, proof = server.proof()
    head = POLL_HEAD.replace("{proof}", f", CASE WHEN {condition} THEN 1 ELSE 0 END").replace("{shared}", SHARED)
    head = head.replace("{requested}", REQUESTED)
    pulse = {
        node.get("Index Name")
        for node in plan_of(words.sql(head.replace("{due_in}", words.remaining("due_at"))), proof)
    }
    assert "sqlqueue_message_pkey" in pulse
    watch, values = server.proven(WATCH, (low, low + 1_000), 4, 1)
    assert indexes_of(words.sql(watch), tuple(values)) == {"sqlqueue_message_pkey"}
    newest = words.branch.format(NEWEST.replace("{columns}", "payload").replace("{due_in}", "1"))
    new, values = server.proven(newest, (low, 100), 5, 2)
    assert "sqlqueue_message_pkey" in indexes_of(words.sql(new), tuple(values))
    by_offset = WHOLE.replace("{columns}", "payload").replace("{marks}", "%s, %s")
    assert indexes_of(words.sql(by_offset), (low + 1, low + 2)) == {"sqlqueue_message_pkey"}
    sizes = SIZES.replace("{marks}", "%s, %s")
    assert indexes_of(words.sql(sizes), (low + 1, low + 2)) == {"sqlqueue_message_pkey"}


@pytest.mark.database("postgresql")
@pytest.mark.parametrize("statement", [FETCH, FETCH_TO, LOOK, ABOVE])
def test_a_read_of_a_stream_reads_no_other_stream(topics: None, statement: str) -> None:
    """What it reads of the index ends where the stream does, however many entries of the topic are behind it."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_message (topic, partition, priority, message_id, payload)"
            " SELECT 't', n % 8, n / 50000, n, '1' FROM GENERATE_SERIES(1, 150000) AS n"
        )
        cursor.execute("ANALYZE sqlqueue_message")
    words, highest = LOG.dialect, highest_offset(LOG)
    high = () if "{beyond}" in statement else (highest,)
    text = words.sql(statement.replace("{columns}", "payload"))
    limit = () if statement == ABOVE else (500,)
    values = (0, *words.range_values("t", 1, 0, highest - 20, *high), *limit)
    with connection.cursor() as cursor:
        for _ in range(2):  # the first one remembers what it has found out about the index
            cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {text}", values)
            (found,) = cursor.fetchone()[0]
    plan = found["Plan"]
    assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 10, found


@contextmanager
def statements() -> Iterator[list[str]]:
    """The statements that are run inside the block."""
    seen: list[str] = []

    def note(execute, sql, params, many, context):
        seen.append(" ".join(sql.split()))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield seen


def test_a_batch_in_which_everything_succeeds_costs_one_row_update(settings: object) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600}
    handled: list[object] = []
    subscriber = host(lambda delivery: handled.append(delivery.payload), batch_size=500, start="earliest")
    subscriber.dispatcher.throttle.target = 5_000
    subscriber.run_once()
    publish_many("t", range(500))
    with statements() as seen:
        work(subscriber, 6)
    assert len(handled) == 500
    # One claims, one settles: at the log's end there is nothing to claim that could ride on it.
    assert len([sql for sql in seen if sql.startswith("UPDATE")]) == 2
    assert not [sql for sql in seen if sql.startswith(("INSERT", "DELETE", "SAVEPOINT"))]
    assert not DeliveryState.objects.exists()
    subscriber.close()


def test_a_claim_rides_on_the_settle_before_it(settings: object) -> None:
    settings.SQLQUEUE = {"PARTITIONS": 1, "WAKE": False, "LEASE_DURATION": 3600}
    subscriber = host(lambda delivery: None, start="earliest")
    subscriber.run_once()
    publish_many("t", range(100))
    subscriber.dispatcher.throttle.target = 10
    subscriber.dispatcher.throttle.finished = lambda count, now: None
    with statements() as seen:
        work(subscriber, 15)
    assert subscriber.settled == 100
    assert len([sql for sql in seen if sql.startswith("UPDATE")]) == 11  # ten claims, and the last settle
    subscriber.close()


def looks() -> None:
    """Look at everything, as the admin's pages do."""
    survey(LOG)
    survey(LOG, "t")
    with patch.object(counting, "EXACT", 400):
        survey(LOG)
    survey_with_partitions(LOG, "t", "g")[1]
    move.preview(LOG, "g", "t", 50)
    offset_before(LOG, datetime.now(timezone.utc) - timedelta(hours=1))
    now = datetime.now(timezone.utc)
    throughput.rates(LOG, now)
    list(throughput.minutes(LOG, now - timedelta(hours=1)))
    throughput.lags(LOG, now - timedelta(hours=1))
    list(throughput.minutes(LOG, now - timedelta(hours=1), topic="t", consumer_group="g"))


def test_no_look_at_the_queue_reads_a_whole_table(topics: None, recorder: Recorder) -> None:
    groups.register(LOG, "g", "t")
    TopicFactory(name="t_dlq", partitions=8)
    DeadLetterFactory.insert(200, partition=factory.Iterator(range(8)))
    fill()
    minutes = [this_minute() - timedelta(minutes=ago) for ago in range(1, 300)]
    for group in range(20):
        ActivityFactory.insert(299, consumer_group=f"filled{group}", minute=factory.Iterator(minutes), lag=1)
    recorder.statements.clear()
    looks()
    statements = list(recorder.statements.values())
    assert len(statements) > 15
    scans = []
    for state in states():
        for sql, params in statements:
            if not excepted(sql) and (found := [table for table in full_scans(sql, params) if not small(table)]):
                scans.append(f"{state}: {' '.join(sql.split())[:300]} → {found}")
    assert not scans, "\n".join(scans)


# What the survey's statements call small tables, and the bounded lists that they have made themselves. There is a lease
# for each partition of a group, and a look at all groups is a look at all of them.
SMALL_HERE = (
    "g",
    "t",
    "n",
    "given",
    *SMALL,
    "sqlqueue_partition_lease",
    "l",
    "head",
    "tail",
    "s",
    "some",
    "waiting",
    "dead_letters",
)


def small(found: str) -> bool:
    """Tell whether a plan's line is about a small table."""
    return found.removeprefix("SCAN ").split()[0] in SMALL_HERE
