"""An id is looked up by its unique index, whatever the statistics say: none, of other topics only, or skewed."""

import re

import factory
import pytest
from django.db import connection, transaction

from sqlqueue import Batch, NewMessage, cancel, get_scheduled, get_status, publish, publish_many
from sqlqueue.database import gate, scheduling
from sqlqueue.database.insert_sql import LogRow
from sqlqueue.log import groups, retention
from sqlqueue.log.topics import stored
from sqlqueue.models import Message
from sqlqueue.operations.messages import acknowledge
from sqlqueue.operations.move import move
from sqlqueue.stats import search
from sqlqueue.stats.group_status import DEAD, statuses_of
from tests.database.plans import Recorder, plan_of
from tests.database.statistics import analyze
from tests.factories import DeadLetterFactory, ResultFactory
from tests.logs import LOG

pytestmark = pytest.mark.django_db(transaction=True)

UNIQUE = {"sqlqueue_message": "sqlqueue_message_id", "sqlqueue_scheduled_message": "sqlqueue_scheduled_id"}
RESULTS = {"sqlqueue_result": "sqlqueue_result_message"}
TOPIC_AND_ID = ("(message_id=? AND topic=?)", "(topic=? AND message_id>? AND message_id<?)")
OWN = ("SCAN wanted", "SCAN CONSTANT", "SCAN 1 CONSTANT")  # what a statement has made itself
BY_ID = re.compile("(WHERE|JOIN).*message_id", re.DOTALL)
SEVERAL = 40
ALIASES = ("found", "m", "c")
NUMBERS = ("sqlqueue_message_pkey", "sqlqueue_scheduled_message_pkey", "PRIMARY")  # by these a row is found, too
WHOLE = (
    "(message_id=? AND topic=? AND partition_key=?)",
    "(topic=? AND message_id=? AND partition_key=?)",
    "(rowid=?)",
)


def fill(topic: str, count: int, id: str = "") -> None:
    """Publish and schedule messages, of a few keys, or of one id and as many keys; what is scheduled is of one key."""
    messages = [NewMessage(n, id=id or f"{topic}{n}", key=f"k{n if id else n % 50}") for n in range(count)]
    publish_many(topic, messages)
    later = [NewMessage(n, id=f"later{n}", key="k1", delay=3600.0) for n in range(count // 2)]
    publish_many(topic, later)


def keep(topic: str, id: str = "") -> None:
    """Let there be results of messages that were collected: of one key, or of one id and as many keys."""
    ids = factory.Iterator([id or f"kept{n}" for n in range(2_000)])
    keys = factory.Iterator([f"k{n if id else 1}" for n in range(2_000)])
    ResultFactory.insert(2_000, topic=topic, message_id=ids, partition_key=keys)


def looked_up() -> dict[str, tuple]:
    """Do all that looks ids up; return those statements, with their parameters."""
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        for _ in range(2):
            publish("mails", 1, id="once", key="k1")
            publish_many("mails", [NewMessage(1, id=f"once{n}", key="k1") for n in range(5)])
            publish_many("mails", [NewMessage(1, id=f"once{n}", key=f"k{n}") for n in range(40)])
            publish("mails", 1, id="due", key="k1", delay=3600)
        publish("mails", 2, id="due", key="k1", delay=3600, on_conflict="replace")
        publish_many("mails", [NewMessage(2, id="due", key="k1", delay=3600, on_conflict="replace")] * 2)
        publish("mails", 2, key="k1", delay=3600, unique_for="key")
        publish("mails", 2, key="k1", delay=3600, unique_for="key")
        get_scheduled("mails", id="due", key="k1")
        get_status("mails", id="due", key="k1")
        get_status("mails", id="once", key="k1")
        row = LogRow("mails", 0, 0, "k1", "due", "1", None, "")
        with transaction.atomic():
            scheduling.lock_existing(LOG, row)
            gate.find_offset(LOG, row, latest=True)
            scheduling.withdraw(LOG, [("mails", "not there", "k1")])
        cancel("mails", id="due", key="k1")
    return by_ids(recorder)


def looked_up_together() -> dict[str, tuple]:
    """Do all that looks several ids up; return those statements, with their parameters."""
    groups.register(LOG, "g", "mails", "latest")
    with Batch() as batch:
        batch.publish_many("mails", [NewMessage(n, key=f"k{n}") for n in range(SEVERAL)])
    messages = list(Message.objects.filter(topic="mails").order_by("-offset")[:SEVERAL])
    move(LOG, "g", "mails", messages[0].offset)
    offsets, keys = [one.offset for one in messages], [one.partition_key for one in messages]
    dead = {"original_topic": "mails", "original_offset": factory.Iterator(offsets)}
    DeadLetterFactory.insert(SEVERAL, **dead, partition_key=factory.Iterator(keys))
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        assert {one.state for several in statuses_of(LOG, messages).values() for one in several} == {DEAD}
        with transaction.atomic():
            retention.keep(LOG, "mails", offsets, 0)
        move(LOG, "g", "mails", 0)
        assert acknowledge("mails", "g", ids=[one.message_id for one in messages[:1]], key=keys[0]) == 1
        assert acknowledge("mails", "g", ids=[f"mails{n}" for n in range(SEVERAL)], key="k1") == 1
    return by_ids(recorder)


def looked_up_without_keys() -> dict[str, tuple]:
    """Search the keys and the messages of an id; return those statements, with their parameters."""
    topic, recorder = stored(LOG, "mails"), Recorder()
    assert topic is not None
    with connection.execute_wrapper(recorder):
        assert len(search.by_id(LOG, topic, "mails1", 10)) == 1
    return dict(recorder.statements.values())


def by_ids(recorder: Recorder) -> dict[str, tuple]:
    """Return the statements that look ids up in the log or the schedule, with their parameters."""
    return {
        sql: params
        for sql, params in recorder.statements.values()
        if BY_ID.search(sql) and "sqlqueue_result" not in sql
    }


def others(sql: str, params: tuple) -> list[str]:
    """Return what a plan reads the log or the schedule by beside the whole unique index of ids, and numbers."""
    plan = plan_of(sql, params)
    if connection.vendor == "postgresql":
        reads = [node for node in plan if node.get("Relation Name") in UNIQUE and node["Node Type"] != "ModifyTable"]
        names = [str(node.get("Index Name", node["Node Type"])) for node in reads]
        return [name for name in names if name not in (*UNIQUE.values(), *NUMBERS)]
    if connection.vendor == "mysql":
        reads = [row for row in plan if row["table"] in (*UNIQUE, *ALIASES)]
        return [str(row) for row in reads if row["key"] not in (*UNIQUE.values(), *NUMBERS)]
    details = [str(row["detail"]) for row in plan if set(str(row["detail"]).split()) & {*UNIQUE, *ALIASES}]
    return [detail for detail in details if not detail.removesuffix(" LEFT-JOIN").endswith(WHOLE)]


def read_otherwise(sql: str, params: tuple) -> list[str]:
    """Return by what a plan reads a table other than topic and id in the unique index of ids."""
    plan, unique = plan_of(sql, params), (UNIQUE | RESULTS).values()
    if connection.vendor == "postgresql":
        reads = [node for node in plan if "Index Name" in node or node["Node Type"] == "Seq Scan"]
        whole = [node for node in reads if "message_id" in str(node.get("Index Cond")) and node["Index Name"] in unique]
        return [str(node) for node in reads if node not in whole]
    if connection.vendor == "mysql":
        rows = [row for row in plan if not str(row["table"]).startswith("<") and row["table"] is not None]
        return [str(row) for row in rows if row["key"] not in unique or row["type"] in ("index", "ALL")]
    lines = [str(row["detail"]) for row in plan]
    details = [line for line in lines if line.startswith(("SEARCH", "SCAN")) and not line.startswith(OWN)]
    return [detail for detail in details if not detail.endswith(TOPIC_AND_ID)]


@pytest.fixture(params=["none", "of other topics", "skewed", "of other ids"])
def statistics(request: pytest.FixtureRequest, transactional_db: None, settings: object) -> None:
    """A log of which the database knows little, or what misleads it."""
    settings.SQLQUEUE = {"WAKE": False, "PARTITIONS": 4}
    publish("mails", 0)
    if request.param != "none":
        topic, id = {"of other ids": "a"}.get(request.param, "orders"), "daily" if request.param == "skewed" else ""
        fill(topic, 8_000, id)
        keep(topic, id)
        analyze(*UNIQUE, *RESULTS)
    fill("mails", 4_000)
    keep("mails")


def test_ids_are_looked_up_by_their_unique_index(statistics: None, settings: object) -> None:
    """By publishers, people, a group's move and collection; the keys of an id, by the admin's search."""
    settings.SQLQUEUE |= {"TOPICS": {"mails": {"keep_collected": 60.0}}}
    for looking, least in ((looked_up, 5), (looked_up_together, 4)):
        statements = looking()
        assert len(statements) >= least
        assert [(sql, found) for sql, params in statements.items() if (found := others(sql, params))] == []
    ((sql, params),) = looked_up_without_keys().items()
    assert read_otherwise(sql, params) == [], sql


def test_more_ids_than_one_statement_looks_up_are_all_found(settings: object) -> None:
    settings.SQLQUEUE = {"WAKE": False}
    publish_many("mails", [NewMessage(n, id=f"mails{n}", key="k") for n in range(1_100)])
    wanted = [("mails", f"mails{n}", key) for n in range(1_200) for key in ("k", "another")]
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        found = Message.objects.of_ids(wanted, "payload")
    assert recorder.count == 5
    assert sorted(message.payload for message in found) == list(range(1_100))


@pytest.mark.database("postgresql")
def test_no_other_index_serves_where_the_unique_one_is_gone(settings: object) -> None:
    """What the statistics make of a lookup does not matter then."""
    settings.SQLQUEUE = {"WAKE": False, "TOPICS": {"mails": {"keep_collected": 60.0}}}
    fill("mails", SEVERAL)
    statements = looked_up() | looked_up_together() | looked_up_without_keys()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sqlqueue_message DROP CONSTRAINT sqlqueue_message_id")
        cursor.execute("SET LOCAL enable_seqscan = off")
        used = {
            str(node["Index Name"])
            for sql, params in statements.items()
            if "INSERT" not in sql  # whose ON CONFLICT names that index
            for node in plan_of(sql, params)
            if "sqlqueue_message" in str(node.get("Index Name")) and "Index Cond" in node
        } - set(NUMBERS)
        transaction.set_rollback(True)
    assert used == set()
