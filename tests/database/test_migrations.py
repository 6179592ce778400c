"""Migrations: from every released state, with data in the tables and with a log that was emptied."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import product
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from sqlqueue import publish, testing
from sqlqueue.checks import check_offsets
from sqlqueue.database.limits import missing_indexes
from sqlqueue.database.sequence import look
from sqlqueue.database.statements import execute
from sqlqueue.log.schedule import move_due
from sqlqueue.log.topic_options import apply_settings
from sqlqueue.models import BatchProgress, Message, Offset, PartitionLease, ScheduledMessage, Topic
from tests.consuming import Consuming

pytestmark = pytest.mark.django_db(transaction=True)

RELEASED = sorted(name for app, name in MigrationLoader(None).graph.nodes if app == "sqlqueue")
OF_0_1 = [name for name in RELEASED if name < "0006"]
# The first state, that of 0.1, the last two; `make test-long` begins with each.
NEAR = {RELEASED[0], OF_0_1[-1], *RELEASED[-2:]}
HANDLED = 5
# Making the tables anew, state by state, takes half a minute on a server; what these migrations do does not change.
long_on_servers = pytest.mark.long("mariadb", "mysql", "postgresql")


def states(*more: Any, of: Sequence[str] = RELEASED) -> list[Any]:
    """Return earlier states as parameters of a test, each followed by `more`."""
    return [pytest.param(name, *more, id=name, marks=[] if name in NEAR else [pytest.mark.long]) for name in of]


def migrate(name: str = "") -> None:
    call_command("migrate", "sqlqueue", *([name] if name else []), verbosity=0)


@pytest.fixture
def at() -> Iterator[Callable[[str], None]]:
    """Make the tables afresh, as a migration left them."""

    def go(name: str) -> None:
        migrate("zero")
        migrate(name)

    yield go
    migrate()


def state(name: str) -> Any:
    """Return the models as they were then."""
    return MigrationLoader(connection).project_state([("sqlqueue", name)]).apps


def handled(name: str) -> None:
    """Leave five messages that a group has handled, and one that failed, with the tables of that time."""
    models = state(name)

    def create(model: str, **values: Any) -> None:
        models.get_model("sqlqueue", model).objects.create(**values)

    place = {"consumer_group": "g", "topic": "t", "partition": 0}
    create("Topic", name="t", partitions=1)
    create("ConsumerGroup", consumer_group="g", topic="t")
    create("PartitionLease", **place, fencing_token=1)
    for number in range(HANDLED):
        create("Message", topic="t", partition=0, message_id=str(number), payload={"number": number})
    last = models.get_model("sqlqueue", "Message").objects.latest("offset").offset
    create("Offset", **place, position=last, offset_acked=last, claimed_to=last, fencing_token=1)


def columns() -> list[tuple[str, str, str]]:
    """Return (table, column, character set) of the queue's texts."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT table_name, column_name, character_set_name FROM information_schema.columns"
            " WHERE table_schema = DATABASE() AND table_name LIKE 'sqlqueue%%' AND character_set_name IS NOT NULL"
        )
        return list(cursor.fetchall())


@long_on_servers
class TestFormerOwners:
    """A process of version 0.1 knows of no ranges: it would take what waits in one for done."""

    # The statements by which it renews its leases, and settles: from its source.
    RENEW = "UPDATE sqlqueue_partition_lease SET expires_at = {later} WHERE holder = %s"
    SETTLE = "UPDATE sqlqueue_offset SET position = %s WHERE id = %s AND fencing_token = %s"

    @pytest.mark.parametrize("name", states(of=OF_0_1))
    def test_one_that_was_not_stopped_fails_loudly_and_settles_nothing(
        self, name: str, at: Callable[[str], None]
    ) -> None:
        at(name)
        handled(name)
        models = state(name)
        leases, offsets = (models.get_model("sqlqueue", each).objects for each in ("PartitionLease", "Offset"))
        leases.update(holder="former", expires_at=timezone.now() + timedelta(hours=1))
        place, token = offsets.get().pk, offsets.get().fencing_token
        assert execute("default", self.RENEW, (60_000_000, "former")).rowcount == 1
        assert execute("default", self.SETTLE, (HANDLED, place, token)).rowcount == 1
        migrate()
        with pytest.raises(DatabaseError, match="expires_at"):
            execute("default", self.RENEW, (60_000_000, "former"))
        assert execute("default", self.SETTLE, (HANDLED + 1, place, token)).rowcount == 0
        lease = PartitionLease.objects.get()
        assert (lease.holder, lease.valid_until) == ("", None)
        assert lease.fencing_token > token

    def test_what_it_had_in_flight_is_recovered(self, at: Callable[[str], None], consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload["number"]), group="g")
        name = "0005_overview"
        at(name)
        handled(name)
        models = state(name)
        first = models.get_model("sqlqueue", "Message").objects.earliest("offset").offset
        # It holds the lease, has acked the first message, and has claimed them all.
        models.get_model("sqlqueue", "Offset").objects.update(position=first, offset_acked=first)
        models.get_model("sqlqueue", "PartitionLease").objects.update(
            holder="former", expires_at=timezone.now() + timedelta(hours=1)
        )
        migrate()
        testing.drain()
        assert sorted(seen) == list(range(1, HANDLED))


class TestSequence:
    @pytest.mark.parametrize(("name", "emptied"), [*states(False), (RELEASED[0], True), (RELEASED[-1], True)])
    def test_what_is_published_after_a_migration_is_delivered(
        self, name: str, emptied: bool, at: Callable[[str], None], consuming: Consuming
    ) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload["number"]), group="g")
        at(name)
        handled(name)
        if emptied:  # by collection
            state(name).get_model("sqlqueue", "Message").objects.all().delete()
        migrate()
        for number in range(HANDLED, 2 * HANDLED):
            publish("t", {"number": number})
        testing.drain()
        assert sorted(seen) == list(range(HANDLED, 2 * HANDLED))
        assert not look("default").fell_back

    @pytest.mark.database("sqlite")
    @pytest.mark.parametrize("name", states())
    def test_rebuilt_tables_go_on_where_they_were_though_no_group_knows(
        self, name: str, at: Callable[[str], None]
    ) -> None:
        tables = {"sqlqueue_message": 1000, "sqlqueue_receipt": 2000, "sqlqueue_scheduled_message": 3000}
        at(name)
        execute("default", "DELETE FROM sqlite_sequence")
        for table, last in tables.items():
            execute("default", "INSERT INTO sqlite_sequence (name, seq) VALUES (%s, %s)", (table, last))
        migrate()
        migrate(name)  # and back
        standing = dict(execute("default", "SELECT name, seq FROM sqlite_sequence").fetchall())
        assert {table: standing.get(table) for table in tables} == tables

    def test_a_sequence_that_was_reset_before_is_raised(self, at: Callable[[str], None], consuming: Consuming) -> None:
        seen: list[int] = []
        consuming.consumer("t", lambda delivery: seen.append(delivery.payload), group="g")
        at("0005_overview")
        handled("0005_overview")
        state("0005_overview").get_model("sqlqueue", "Message").objects.all().delete()
        reset_sequence()
        assert look("default").fell_back
        assert [message.id for message in check_offsets(["default"])] == ["sqlqueue.E024"]
        migrate()
        assert check_offsets(["default"]) == []
        mark = look("default")
        assert (mark.known, mark.last_issued) == (HANDLED, HANDLED)
        publish("t", "afterwards")
        testing.drain()
        assert seen == ["afterwards"]

    def test_a_sequence_that_is_ahead_stays_where_it_is(self) -> None:
        publish("t", 1)
        last = Message.objects.latest("offset").offset
        Message.objects.all().delete()
        migrate()
        published = publish("t", 2).offset
        assert published
        assert published > last


@long_on_servers
class TestTheScopeOfIds:
    BEFORE = "0009_failing_tasks"

    def test_of_messages_that_were_scheduled_twice_the_first_to_be_due_counts_and_none_is_lost(
        self, at: Callable[[str], None]
    ) -> None:
        at(self.BEFORE)
        scheduled = state(self.BEFORE).get_model("sqlqueue", "ScheduledMessage").objects
        soon, late = (timezone.now() + timedelta(hours=hours) for hours in (1, 2))
        for number, (key, id, due) in enumerate(
            [("a", "x", late), ("a", "x", soon), ("b", "x", late), ("a", "", late), ("a", "", soon), ("a", "x", late)]
        ):
            scheduled.create(topic="t", payload=number, partition_key=key, message_id=id, due_at=due)
        migrate()
        found = {message.payload: message for message in ScheduledMessage.objects.all()}
        assert [found[number].message_id for number in range(6)] == [None, "x", "x", None, None, None]
        assert [number for number in range(6) if found[number].refused] == [0, 5]
        assert "of this topic, key and id (x) is scheduled" in found[0].refusal
        assert not publish("t", 7, key="a", id="x").created
        assert publish("t", 7, key="c", id="x").created
        Message.objects.all().delete()
        migrate(self.BEFORE)
        ids = state(self.BEFORE).get_model("sqlqueue", "ScheduledMessage").objects.order_by("id")
        assert list(ids.values_list("message_id", flat=True)) == ["", "x", "x", "", "", ""]

    def test_ids_that_differ_a_little_are_no_repeats(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        words = {"Welcome", "welcome", "wélcome", "welcome ", "order-🛫"}
        scheduled = state(self.BEFORE).get_model("sqlqueue", "ScheduledMessage").objects
        for word in words:
            scheduled.create(topic="t", payload=1, message_id=word, due_at=timezone.now() + timedelta(hours=1))
        migrate()
        assert set(ScheduledMessage.objects.filter(refused=False).values_list("message_id", flat=True)) == words
        migrate(self.BEFORE)
        assert set(scheduled.filter(refused=False).values_list("message_id", flat=True)) == words

    def test_back_is_refused_while_the_former_scope_would_take_two_for_one(self, at: Callable[[str], None]) -> None:
        migrate()
        for number in range(64):
            publish("mails", 1, key=f"customer {number}", id="welcome")
        with pytest.raises(CommandError, match="Nothing was changed"):
            migrate(self.BEFORE)
        migrate()  # what came later was undone before
        assert not missing_indexes("default", [Message, ScheduledMessage])
        assert not publish("mails", 1, key="customer 1", id="welcome", delay=1).created
        Message.objects.all().delete()

    @pytest.mark.database("mariadb", "mysql")
    def test_one_that_was_interrupted_goes_on(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        migrate("0010_scope_of_ids")
        MigrationRecorder(connection).record_unapplied("sqlqueue", "0010_scope_of_ids")
        migrate()
        assert not missing_indexes("default", [Message, ScheduledMessage])

    def test_the_index_is_there_by_its_name_and_on_its_columns(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        assert len(missing_indexes("default", [Message, ScheduledMessage])) == 3
        migrate()
        assert not missing_indexes("default", [Message, ScheduledMessage])


@long_on_servers
class TestTimesOfScheduledMessages:
    BEFORE = "0013_rescheduling_by_key"

    def test_what_is_there_is_delivered_with_the_times_that_are_known(
        self, at: Callable[[str], None], consuming: Consuming
    ) -> None:
        at(self.BEFORE)
        models = state(self.BEFORE)
        models.get_model("sqlqueue", "Topic").objects.create(name="t", partitions=1, priorities=1)
        rows = models.get_model("sqlqueue", "Message").objects
        rows.create(topic="t", partition=0, message_id="in the log", payload=1)
        due = timezone.now().replace(microsecond=7) - timedelta(hours=1)
        later = models.get_model("sqlqueue", "ScheduledMessage").objects
        later.create(topic="t", message_id="scheduled", payload=2, due_at=due, created_at=due - timedelta(hours=1))
        migrate()
        assert not missing_indexes("default", [Message, ScheduledMessage])
        seen: dict[str, Any] = {}
        consuming.consumer("t", lambda delivery: seen.setdefault(delivery.id, delivery))
        testing.drain()
        before, scheduled = seen["in the log"], seen["scheduled"]
        assert (before.due_at, before.published_at) == (None, before.created_at)
        assert (scheduled.due_at, scheduled.published_at) == (due, due - timedelta(hours=1))
        migrate(self.BEFORE)
        assert rows.count() == 2

    @pytest.mark.database("mariadb", "mysql")
    def test_one_that_was_interrupted_goes_on(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        execute("default", "ALTER TABLE sqlqueue_message ADD COLUMN published_at DATETIME(6) NULL")
        migrate()
        assert not missing_indexes("default", [Message, ScheduledMessage])
        assert Message.objects.filter(due_at=None).count() == 0


@long_on_servers
class TestBytesAndExpiry:
    BEFORE = "0015_results"

    def test_what_is_there_is_json_and_does_not_expire(self, at: Callable[[str], None], consuming: Consuming) -> None:
        at(self.BEFORE)
        models = state(self.BEFORE)
        models.get_model("sqlqueue", "Topic").objects.create(name="t", partitions=1, priorities=1)
        rows = models.get_model("sqlqueue", "Message").objects
        rows.create(topic="t", partition=0, message_id="in the log", payload=1)
        later = models.get_model("sqlqueue", "ScheduledMessage").objects
        later.create(topic="t", message_id="scheduled", payload=2, due_at=timezone.now())
        migrate()
        seen: list[Any] = []
        consuming.consumer("t", lambda delivery: seen.append((delivery.payload, delivery.content_type)))
        testing.drain()
        assert sorted(seen) == [(1, None), (2, None)]
        migrate(self.BEFORE)
        assert rows.count() == 2

    @pytest.mark.database("mariadb", "mysql")
    def test_one_that_was_interrupted_goes_on(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        execute("default", "ALTER TABLE sqlqueue_message ADD COLUMN body LONGBLOB NULL")
        migrate()
        assert Message.objects.filter(body=None, expires_at=None).count() == 0
        assert ScheduledMessage.objects.filter(body=None, expires_after=None).count() == 0


@long_on_servers
class TestTopics:
    """Until 0011 the settings reached no topic that was there."""

    BEFORE = "0009_failing_tasks"

    def test_what_differs_from_the_settings_becomes_an_override(self, at: Callable[[str], None], settings: Any) -> None:
        at(self.BEFORE)
        topics = state(self.BEFORE).get_model("sqlqueue", "Topic").objects
        week = 7 * 86_400.0
        for name, retention, history in (
            ("as the settings are", week, "failures"),
            ("longer", 2 * week, "failures"),
            ("for ever", None, "failures"),
            ("all", week, "all"),
            ("named", 5.0, "none"),
            ("x_dlq", None, "failures"),
        ):
            topics.create(name=name, partitions=1, retention=retention, history=history)
        settings.SQLQUEUE = {"TOPICS": {"named": {"retention": 5, "history": "none"}}}
        before = list(topics.order_by("name").values_list("name", "retention", "history"))
        migrate()
        assert apply_settings("default") == []
        assert list(Topic.objects.order_by("name").values_list("name", "retention", "history")) == before
        assert {topic.name: topic.overridden for topic in Topic.objects.all() if topic.overridden} == {
            "longer": ("retention",),
            "for ever": ("retention",),
            "all": ("history",),
        }

    def test_topics_that_only_scheduled_messages_name_are_declared(
        self, at: Callable[[str], None], settings: Any
    ) -> None:
        at(self.BEFORE)
        scheduled = state(self.BEFORE).get_model("sqlqueue", "ScheduledMessage").objects
        for topic, refused in (("reports", False), ("reports", False), ("no name", False), ("wrong", True)):
            scheduled.create(topic=topic, payload=1, refused=refused)
        settings.SQLQUEUE = {"TOPICS": {"orders": {}}}
        migrate()
        assert [topic.name for topic in Topic.objects.all()] == ["reports"]
        while move_due("default"):
            pass
        assert [message.topic for message in Message.objects.all()] == ["reports", "reports"]


def reset_sequence() -> None:
    """Let the sequence of the empty log begin anew, as a restore without it does."""
    if connection.vendor == "sqlite":
        execute("default", "DELETE FROM sqlite_sequence WHERE name = 'sqlqueue_message'")
    elif connection.vendor == "mysql":
        execute("default", "ALTER TABLE sqlqueue_message AUTO_INCREMENT = 1")
    else:
        execute("default", "SELECT SETVAL(PG_GET_SERIAL_SEQUENCE('sqlqueue_message', 'offset'), 1, FALSE)")


@long_on_servers
class TestSharing:
    BEFORE = "0025_work_items"

    def test_leases_and_offsets_that_are_there_are_slice_0_of_1(
        self, at: Callable[[str], None], consuming: Consuming
    ) -> None:
        at(self.BEFORE)
        models = state(self.BEFORE)
        models.get_model("sqlqueue", "Topic").objects.create(name="t", partitions=2, priorities=1)
        models.get_model("sqlqueue", "ConsumerGroup").objects.create(topic="t", consumer_group="default", start=0)
        messages = models.get_model("sqlqueue", "Message").objects
        offsets = [messages.create(topic="t", partition=n % 2, message_id=str(n), payload=n).offset for n in range(10)]
        place = {"topic": "t", "consumer_group": "default"}
        marks = {"position": offsets[5], "offset_acked": offsets[5], "claimed_to": offsets[5], "fencing_token": 7}
        for partition in range(2):
            models.get_model("sqlqueue", "PartitionLease").objects.create(**place, partition=partition, fencing_token=7)
            models.get_model("sqlqueue", "Offset").objects.create(**place, partition=partition, priority=0, **marks)
        migrate()
        assert not missing_indexes("default", [Offset, PartitionLease])
        assert set(Offset.objects.values_list("slice", "slices")) == {(0, 1)}
        got: list[int] = []
        consuming.consumer("t", lambda delivery: got.append(delivery.payload), ordering="none", sharing=3)
        testing.drain()
        assert sorted(got) == [6, 7, 8, 9]
        assert sorted(PartitionLease.objects.values_list("partition", "slice")) == [*product(range(2), range(3))]
        with pytest.raises(CommandError, match=r"default of t.*Nothing was changed"):
            migrate(self.BEFORE)
        migrate()  # what came later was taken back
        consuming.forget()
        consuming.consumer("t", got.append, ordering="none")
        messages.create(topic="t", partition=0, message_id="10", payload=10)  # a drain hosts groups that have work
        testing.drain()
        for slice in range(3):
            BatchProgress.objects.create(batch="b", **place, partition=1, priority=0, slice=slice, acked=slice, dead=1)
        migrate(self.BEFORE)
        progress = models.get_model("sqlqueue", "BatchProgress").objects
        assert list(progress.values_list("batch", "partition", "acked", "dead")) == [("b", 1, 3, 3)]
        assert messages.count() == 11
        assert models.get_model("sqlqueue", "Offset").objects.count() == 2

    @pytest.mark.database("mariadb", "mysql")
    def test_one_that_was_interrupted_goes_on(self, at: Callable[[str], None]) -> None:
        at(self.BEFORE)
        execute("default", "ALTER TABLE sqlqueue_offset ADD COLUMN slice SMALLINT NOT NULL DEFAULT 0")
        execute("default", "ALTER TABLE sqlqueue_partition_lease ADD COLUMN slice SMALLINT NOT NULL DEFAULT 0")
        columns = "(topic, consumer_group, `partition`, slice)"
        execute("default", f"ALTER TABLE sqlqueue_partition_lease ADD CONSTRAINT sqlqueue_lease_slice UNIQUE {columns}")
        migrate()
        assert not missing_indexes("default", [Offset, PartitionLease])
