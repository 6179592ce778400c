"""Publishing an id that may be taken: what the publisher is told, and what becomes of both messages, also when another
transaction or the scheduler comes in between."""

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import pytest
from django.db import connection, transaction

from sqlqueue import InvalidMessage, NewMessage, Published, PublishedMany, cancel, publish, publish_many
from sqlqueue.database.log import Log
from sqlqueue.log import adding, conflicts
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Message, ScheduledMessage
from sqlqueue.signals import message_published
from tests.logs import LOG
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.django_db(transaction=True)

TOPIC = "mails"
LATER = timedelta(hours=1)
Publish = Callable[..., str]


@pytest.fixture(autouse=True)
def topics(settings: Any) -> None:
    settings.SQLQUEUE = {"WAKE": False, "TOPICS": {TOPIC: {"partitions": 2, "priorities": 2}}}
    publish(TOPIC, "so that the topic is there")
    Message.objects.all().delete()


def alone(payload: Any, **options: Any) -> str:
    return publish(TOPIC, payload, key="a", id="x", **options).status


def of_many(payload: Any, **options: Any) -> str:
    result = publish_many(TOPIC, ["before", NewMessage(payload, key="a", id="x", **options), "behind"])
    Message.objects.exclude(message_id="x").delete()
    assert result.statuses is not None
    return result.statuses[1]


def of_a_stream(payload: Any, **options: Any) -> str:
    result = publish_many(TOPIC, iter([NewMessage(payload, key="a", id="x", **options)]))
    assert result.statuses is result.ids is None
    assert result.created + result.updated + result.ignored == 1
    return next(status for status in ("created", "updated", "ignored") if getattr(result, status))


def in_a_transaction(way: Publish, payload: Any, **options: Any) -> str:
    with transaction.atomic():
        return way(payload, **options)


WAYS = [alone, of_many, of_a_stream, partial(in_a_transaction, alone), partial(in_a_transaction, of_many)]
ways = pytest.mark.parametrize("way", WAYS, ids=["alone", "many", "stream", "alone in one", "many in one"])


def everything() -> tuple[list[Any], list[Any]]:
    """Return the payloads of the log and of the schedule."""
    log = Message.objects.order_by("offset").values_list("payload", flat=True)
    return list(log), list(ScheduledMessage.objects.order_by("id").values_list("payload", flat=True))


class TestWhatIsTold:
    @ways
    def test_of_one_that_is_new(self, way: Publish) -> None:
        for choice in (None, "ignore", "replace"):
            for options in ({}, {"delay": LATER}):
                assert way(1, on_conflict=choice, **options) == "created"
                Message.objects.all().delete()
                ScheduledMessage.objects.all().delete()

    @ways
    def test_what_is_scheduled_stays_unless_it_is_replaced(self, way: Publish) -> None:
        assert way("first", delay=LATER) == "created"
        assert way("second", delay=LATER) == "ignored"
        assert way("third", delay=LATER, on_conflict="ignore") == "ignored"
        assert way("now") == "ignored"
        assert everything() == ([], ["first"])
        assert way("fourth", delay=2 * LATER, on_conflict="replace") == "updated"
        assert way("fifth", at=datetime.now(timezone.utc) + 2 * LATER, on_conflict="replace") == "updated"
        assert everything() == ([], ["fifth"])

    @ways
    def test_what_is_in_the_log_stays(self, way: Publish) -> None:
        publish(TOPIC, "first", key="a", id="x")
        for options in ({}, {"delay": LATER}, {"at": datetime.now(timezone.utc)}):
            assert way("second", on_conflict="replace", **options) == "ignored"
            assert way("second", **options) == "ignored"
        assert everything() == (["first"], [])

    @ways
    def test_a_replacement_without_a_time_enters_the_log_now(self, way: Publish) -> None:
        alone("first", delay=LATER)
        heard: list[int] = []

        def hear(*, count: int, **_: object) -> None:
            heard.append(count)

        message_published.connect(hear)
        try:
            assert way("second", on_conflict="replace") == "updated"
        finally:
            message_published.disconnect(hear)
        assert everything() == (["second"], [])
        assert sum(heard) in (1, 3)  # with those before and behind it
        assert way("third", delay=LATER, on_conflict="replace") == "ignored"

    def test_with_the_offset(self) -> None:
        assert publish(TOPIC, 1, id="x", delay=LATER) == Published(None, "x", "created")
        entered = publish(TOPIC, 2, id="x", on_conflict="replace")
        assert entered == Published(Message.objects.get().offset, "x", "updated")
        for options in ({}, {"delay": 1}):
            again = publish(TOPIC, 3, id="x", on_conflict="replace", **options)
            assert again == Published(entered.offset, "x", "ignored")
        assert [entered.created, again.created] == [False, False]

    def test_a_replacement_brings_everything_of_its_own_but_the_time_of_the_publish(self) -> None:
        publish(TOPIC, 1, id="x", delay=LATER, headers={"h": 1}, priority=1, group="one")
        first = ScheduledMessage.objects.get()
        at = datetime.now(timezone.utc) + 3 * LATER
        publish(TOPIC, 2, id="x", at=at, group="two", on_conflict="replace")
        row = ScheduledMessage.objects.get()
        assert (row.payload, row.headers, row.priority, row.target_group) == (2, None, 0, "two")
        assert (row.due_at, row.created_at, row.pk) == (at, first.created_at, first.pk)

    def test_what_the_log_has_refused_is_corrected_by_a_replacement(self) -> None:
        publish(TOPIC, 1, id="x", delay=0)
        ScheduledMessage.objects.update(priority=7)
        move_due(LOG)
        assert ScheduledMessage.objects.get().refused
        assert publish(TOPIC, 2, id="x", delay=0, on_conflict="replace").status == "updated"
        assert move_due(LOG) == 1
        assert everything() == ([2], [])

    @ways
    def test_a_rollback_takes_it_back(self, way: Publish) -> None:
        alone("first", delay=LATER)
        for options in ({}, {"delay": 2 * LATER}):
            with transaction.atomic():
                assert way("second", on_conflict="replace", **options) == "updated"
                transaction.set_rollback(True)
        assert everything() == ([], ["first"])


class TestWhatIsRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"on_conflict": "replace"}, "needs an id"),
            ({"on_conflict": "ignore"}, "needs an id"),
            ({"on_conflict": "update", "id": "x"}, "must be 'ignore' or 'replace', not 'update'"),
            ({"on_conflict": ["replace"], "id": "x"}, "must be 'ignore' or 'replace'"),
        ],
    )
    def test_nothing_is_published(self, options: Any, said: str) -> None:
        for delay in (None, 60):
            with pytest.raises(InvalidMessage, match=said):
                publish(TOPIC, 1, delay=delay, **options)
            with pytest.raises(InvalidMessage, match=said):
                publish_many(TOPIC, ["good", NewMessage(1, delay=delay, **options)])
            with pytest.raises(InvalidMessage, match=said):
                publish_many(TOPIC, iter(["good", NewMessage(1, delay=delay, **options)]))
        assert everything() == ([], [])


class TestMany:
    def test_each_has_a_status_of_its_own(self) -> None:
        publish(TOPIC, "in the log", id="log")
        publish(TOPIC, "scheduled", id="scheduled", delay=LATER)
        publish(TOPIC, "replaced", id="replaced", delay=LATER)
        publish(TOPIC, "entering", id="entering", delay=LATER)
        result = publish_many(
            TOPIC,
            [
                NewMessage(1, id="new"),
                NewMessage(2, id="log", on_conflict="replace", delay=1),
                NewMessage(3, id="scheduled"),
                NewMessage(4, id="replaced", on_conflict="replace", delay=2 * LATER),
                NewMessage(5, id="entering", on_conflict="replace"),
                NewMessage(6, id="new later", delay=LATER),
                7,
                NewMessage(8, id="log"),
            ],
        )
        assert result.statuses == [
            "created", "ignored", "ignored", "updated", "updated", "created", "created", "ignored"
        ]  # fmt: skip
        assert (result.created, result.updated, result.ignored) == (3, 2, 3)
        assert everything() == (["in the log", 1, 5, 7], ["scheduled", 4, 6])

    def test_of_one_call_each_finds_what_the_one_before_it_has_left(self) -> None:
        def message(payload: int, **options: Any) -> NewMessage:
            return NewMessage(payload, id="x", key="a", **options)

        result = publish_many(
            TOPIC,
            [
                message(1, delay=LATER),
                message(2, delay=LATER),
                message(3, delay=LATER, on_conflict="replace"),
                NewMessage(4, key="a"),
                message(5, on_conflict="replace"),
                message(6, delay=LATER, on_conflict="replace"),
            ],
        )
        assert result.statuses == ["created", "ignored", "updated", "created", "updated", "ignored"]
        assert everything() == ([4, 5], [])

    def test_the_order_is_that_of_the_call(self) -> None:
        publish(TOPIC, "scheduled", id="x2", key="a", delay=LATER)
        publish_many(TOPIC, [NewMessage(n, key="a", id=f"x{n}", on_conflict="replace") for n in range(5)])
        assert everything() == (list(range(5)), [])

    @pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])
    def test_more_than_a_statement_takes(self, options: Any) -> None:
        half = [NewMessage(n, id=f"{n}", **options) for n in range(0, 2_400, 2)]
        assert publish_many(TOPIC, half).statuses == ["created"] * 1_200
        rest = [NewMessage(n, id=f"{n}", **options) for n in range(2_400)]
        assert publish_many(TOPIC, rest).statuses == ["ignored", "created"] * 1_200


class TestAStream:
    def messages(self, count: int) -> Iterator[NewMessage]:
        for n in range(count):
            yield NewMessage(n, id=f"{n % 1_500}", delay=None if n % 2 else LATER)

    def test_has_counts_alone(self) -> None:
        result = publish_many(TOPIC, self.messages(2_200))
        assert result == PublishedMany(None, None, 1_500, 0, 700)
        assert Message.objects.count() == ScheduledMessage.objects.count() == 750

    def test_is_not_held_in_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sizes: list[int] = []
        add_rows = adding.add_rows

        def note(log: Log, messages: Any) -> Any:
            sizes.append(len(messages))
            return add_rows(log, messages)

        monkeypatch.setattr("sqlqueue.log.publish.add_rows", note)
        publish_many(TOPIC, iter(range(2_500)))
        publish_many(TOPIC, (str(n) * 400_000 for n in range(3)))  # by their bytes as well
        assert sizes == [1_000, 1_000, 500, 2, 1]

    def test_is_one_transaction_inside_of_the_callers(self) -> None:
        def broken() -> Iterator[NewMessage]:
            yield from self.messages(1_700)
            yield NewMessage({1, 2})

        with transaction.atomic():
            publish(TOPIC, "stays")
            with pytest.raises(InvalidMessage):
                publish_many(TOPIC, broken())
            publish(TOPIC, "goes on")
        assert everything() == (["stays", "goes on"], [])


@pytest.fixture
def after_the_look(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen once, right after a publisher has looked where its id is taken."""

    def happens(what: Callable[[], object]) -> None:
        for name in ("find_existing", "_taken_ids"):
            look = getattr(conflicts, name)

            def looking(*arguments: Any, look: Any = look) -> Any:
                found = look(*arguments)
                if not done:
                    done.append(True)
                    what()
                return found

            monkeypatch.setattr(conflicts, name, looking)

    done: list[bool] = []
    return happens


def moved() -> None:
    ScheduledMessage.objects.update(due_at=datetime(2026, 1, 1, tzinfo=timezone.utc))
    assert move_due(LOG) == 1


def scheduled_and_moved() -> None:
    publish(TOPIC, "another's", key="a", id="x", delay=0)
    moved()


class TestBetweenTheLookAndTheWrite:
    """Another connection does it in production; here it is done by the same one, where no transaction is open yet."""

    BOTH = pytest.mark.parametrize("way", [alone, of_many], ids=["alone", "many"])

    @BOTH
    @pytest.mark.parametrize("choice", ["ignore", "replace"])
    def test_another_has_scheduled_it_and_it_is_in_the_log(
        self, way: Publish, choice: str, after_the_look: Any
    ) -> None:
        after_the_look(scheduled_and_moved)
        assert way("mine", delay=0, on_conflict=choice) == "ignored"
        assert everything() == (["another's"], [])

    @BOTH
    def test_another_has_scheduled_it(self, way: Publish, after_the_look: Any) -> None:
        after_the_look(lambda: publish(TOPIC, "another's", key="a", id="x", delay=LATER))
        assert way("mine", delay=LATER) == "ignored"
        assert everything() == ([], ["another's"])

    @BOTH
    def test_another_has_scheduled_it_and_it_is_replaced(self, way: Publish, after_the_look: Any) -> None:
        after_the_look(lambda: publish(TOPIC, "another's", key="a", id="x", delay=LATER))
        assert way("mine", delay=LATER, on_conflict="replace") == "updated"
        assert everything() == ([], ["mine"])

    @BOTH
    @pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])
    def test_what_was_to_be_replaced_has_entered_the_log(self, way: Publish, options: Any, after_the_look: Any) -> None:
        publish(TOPIC, "another's", key="a", id="x", delay=LATER)
        after_the_look(moved)
        assert way("mine", on_conflict="replace", **options) == "ignored"
        assert everything() == (["another's"], [])

    @BOTH
    @pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])
    def test_what_was_to_be_replaced_was_cancelled(self, way: Publish, options: Any, after_the_look: Any) -> None:
        publish(TOPIC, "another's", key="a", id="x", delay=LATER)
        after_the_look(lambda: cancel(TOPIC, key="a", id="x"))
        assert way("mine", on_conflict="replace", **options) == "created"
        assert everything() == ([] if options else ["mine"], ["mine"] if options else [])


@pytest.mark.database("mariadb", "mysql", "postgresql")
class TestTheScheduler:
    """It and a replacement lock the row first: one of them precedes the other."""

    @pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])
    def test_a_replacement_waits_for_a_move_and_then_comes_too_late(self, options: Any) -> None:
        alone("first", delay=0)
        with OpenTransaction() as scheduler, OpenTransaction() as mine:
            assert scheduler.do(lambda: move_due(LOG)) == 1
            tried = mine.start(lambda: publish(TOPIC, "second", key="a", id="x", on_conflict="replace", **options))
            with pytest.raises(TimeoutError):
                tried.result(0.2)
            scheduler.commit()
            assert tried.result(60) == Published(Message.objects.get().offset, "x", "ignored")
            mine.commit()
        assert everything() == (["first"], [])

    @pytest.mark.parametrize("options", [{}, {"delay": 0}, {"delay": LATER}], ids=["now", "due", "later"])
    def test_a_move_leaves_what_is_being_replaced(self, options: Any) -> None:
        alone("first", delay=0)
        with OpenTransaction() as other:
            assert other.do(lambda: alone("second", on_conflict="replace", **options)) == "updated"
            assert move_due(LOG) == 0
            other.commit()
        move_due(LOG)
        assert everything() == (([], ["second"]) if options.get("delay") else (["second"], []))

    @pytest.mark.parametrize("options", [{"delay": 0}, {"delay": LATER}], ids=["due", "later"])
    def test_what_is_replaced_after_it_was_found_due_is_moved_as_it_is_now(self, options: Any) -> None:
        alone("first", delay=0)
        publish(TOPIC, "of another key", key="b", delay=0)
        replaced: list[str] = []

        def replace(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
            if "SKIP LOCKED" in sql and "sqlqueue_scheduled_message" in sql and not replaced:
                with OpenTransaction() as other:
                    replaced.append(other.do(lambda: alone("second", on_conflict="replace", **options)))
                    other.commit()
            return execute(sql, params, many, context)

        with connection.execute_wrapper(replace):
            assert move_due(LOG) == (2 if options["delay"] == 0 else 1)
        assert replaced == ["updated"]
        if options["delay"] == 0:
            assert sorted(everything()[0]) == ["of another key", "second"]
        else:
            assert everything() == (["of another key"], ["second"])


@pytest.mark.database("mariadb", "mysql")
@pytest.mark.parametrize("options", [{}, {"delay": LATER}], ids=["now", "later"])
def test_a_snapshot_that_is_older_than_the_move_deceives_no_replacement(options: Any) -> None:
    alone("first", delay=LATER)
    connection.close()
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    try:
        with transaction.atomic(), OpenTransaction() as other:
            assert Message.objects.count() == 0
            other.do(moved)
            other.commit()
            assert alone("second", on_conflict="replace", **options) == "ignored"
    finally:
        connection.close()
    assert everything() == (["first"], [])


def test_a_plain_message_costs_one_statement_however_it_is_scheduled(django_assert_num_queries: Any) -> None:
    publish(TOPIC, 1)
    with django_assert_num_queries(1):
        publish(TOPIC, 1)
    with django_assert_num_queries(1):
        publish(TOPIC, 1, delay=LATER)
    with django_assert_num_queries(2):
        publish(TOPIC, 1, id="x")
