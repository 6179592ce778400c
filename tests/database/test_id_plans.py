"""An id is looked up by its unique index, whatever the statistics say: none, of other topics only, or skewed."""

import re

import factory
import pytest
from django.db import connection, transaction

from sqlqueue import NewMessage, cancel, get_scheduled, get_status, publish, publish_many
from sqlqueue.database import gate, scheduling
from sqlqueue.database.insert_sql import LogRow
from tests.database.plans import Recorder, plan_of
from tests.database.statistics import analyze
from tests.factories import ResultFactory
from tests.management.running import run

pytestmark = pytest.mark.django_db(transaction=True)

UNIQUE = {"sqlqueue_message": "sqlqueue_message_id", "sqlqueue_scheduled_message": "sqlqueue_scheduled_id"}
RESULTS = {"sqlqueue_result": "sqlqueue_result_message"}
TOPIC_AND_ID = ("(message_id=? AND topic=?)", "(topic=? AND message_id>? AND message_id<?)")
KEYS_ALONE = re.compile(r"SELECT (DISTINCT )?\S+partition_key\S (AS \S+ )?FROM")
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
            scheduling.lock_existing("default", row)
            gate.find_offset("default", row, latest=True)
            scheduling.withdraw("default", [("mails", "not there", "k1")])
        cancel("mails", id="due", key="k1")
    return {
        sql: params
        for sql, params in recorder.statements.values()
        if "message_id" in sql.partition("WHERE")[2] + sql.partition(" JOIN ")[2] and "sqlqueue_result" not in sql
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
    return [detail for detail in details if not detail.endswith(WHOLE)]


def read_otherwise(sql: str, params: tuple) -> list[str]:
    """Return by what a plan reads a table other than topic and id in the unique index of ids."""
    plan, unique = plan_of(sql, params), (UNIQUE | RESULTS).values()
    if connection.vendor == "postgresql":
        reads = [node for node in plan if "Index Name" in node or node["Node Type"] == "Seq Scan"]
        whole = [node for node in reads if "message_id" in str(node.get("Index Cond")) and node["Index Name"] in unique]
        return [str(node) for node in reads if node not in whole]
    if connection.vendor == "mysql":
        return [str(row) for row in plan if row["key"] not in unique or row["type"] in ("index", "ALL")]
    details = [str(row["detail"]) for row in plan if str(row["detail"]).startswith(("SEARCH", "SCAN"))]
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


def test_an_id_is_looked_up_by_its_unique_index(statistics: None) -> None:
    statements = looked_up()
    assert len(statements) >= 5
    assert [(sql, found) for sql, params in statements.items() if (found := others(sql, params))] == []


def test_the_keys_of_an_id_are_looked_up_by_its_unique_index(statistics: None) -> None:
    """queuestatus --id without --key."""
    recorder = Recorder()
    with connection.execute_wrapper(recorder):
        for id in ("mails1", "later1", "kept1"):
            said = run("queuestatus", "--topic", "mails", "--id", id)
            assert (said.code, "k1" in said.out) == (0, True), said
    statements = [(sql, params) for sql, params in recorder.statements.values() if KEYS_ALONE.match(sql)]
    assert len(statements) == 3
    assert [(sql, found) for sql, params in statements if (found := read_otherwise(sql, params))] == []


@pytest.mark.database("postgresql")
def test_no_other_index_serves_where_the_unique_one_is_gone(settings: object) -> None:
    """What the statistics make of a lookup does not matter then."""
    settings.SQLQUEUE = {"WAKE": False}
    statements = looked_up()
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("ALTER TABLE sqlqueue_message DROP CONSTRAINT sqlqueue_message_id")
        cursor.execute("SET LOCAL enable_seqscan = off")
        used = {
            str(node["Index Name"])
            for sql, params in statements.items()
            for node in plan_of(sql, params)
            if "sqlqueue_message" in str(node.get("Index Name")) and "Index Cond" in node
        } - set(NUMBERS)
        transaction.set_rollback(True)
    assert used == set()
