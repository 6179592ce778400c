"""What is published where the log may not be written to is forwarded, and enters the log in order, each once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from functools import partialmethod
from types import SimpleNamespace

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.backends.signals import connection_created
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from sqlqueue import NewMessage, cancel, cancel_all, get_scheduled, get_status, publish, publish_many
from sqlqueue.consumers.background.duties import CollectorTask
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.background.writer import TAKE_OVER_AFTER, NamedServerTask
from sqlqueue.core.outcomes import ACKED
from sqlqueue.database import forwarding, server_identity, writer
from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.forwarding import GateElsewhere
from sqlqueue.database.gate import insert_new
from sqlqueue.database.horizon import Horizon, highest_offset
from sqlqueue.database.insert_sql import HERE, NAMED, SERVER_LENGTH, LogRow
from sqlqueue.database.scheduling import insert_scheduled
from sqlqueue.database.server_identity import CONNECTIONS_TRIED, NotNamedServer, ServerIdentity, look
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.calls import Call
from sqlqueue.log.schedule import move_due
from sqlqueue.models import Duty, Message, PublishGate, Result, ScheduledMessage
from sqlqueue.models.publish_gate import fill
from sqlqueue.operations.repartition import Repartition, begin
from tests.consuming import QUICK, Consuming
from tests.logs import LOG
from tests.processes import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql")]


def name(server: str) -> None:
    """Let the gate name a server."""
    PublishGate.objects.filter(slot__gte=0).update(writer=server)
    PublishGate.objects.filter(slot=NAMED).update(writer=server, value=1)
    server_identity.forget_session(LOG)


@pytest.fixture(autouse=True)
def elsewhere() -> Iterator[None]:
    """The gate names a server that is not there."""
    name("another")
    yield
    name("")
    LOG.has_writer = False


def here() -> str:
    return writer.writer_state(LOG).here


def led_to(task: NamedServerTask, found: writer.WriterState, run_once=NamedServerTask.run_once) -> bool:
    """Let a task see what it would on another server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlqueue.consumers.background.writer.writer", SimpleNamespace(writer_state=lambda _: found))
        return run_once(task)


def log() -> list[object]:
    return list(Message.objects.order_by("offset").values_list("payload", flat=True))


def waiting() -> list[object]:
    return list(ScheduledMessage.objects.order_by("due_at", "pk").values_list("payload", flat=True))


def test_each_way_to_publish_forwards_and_order_is_kept() -> None:
    published = publish("t", 1, key="k")
    assert (published.offset, published.status) == (None, "created")
    assert publish_many("t", [NewMessage(2, key="k"), NewMessage(3, key="k", headers={"a": 1})]).created == 2
    with transaction.atomic():
        publish("t", 4, key="k", id="four")
        publish_many("t", iter([NewMessage(b"5", key="k", expires=60)]))
    with transaction.atomic():
        publish("t", "taken back", key="k")
        transaction.set_rollback(True)
    assert log() == []
    assert waiting() == [1, 2, 3, 4, None]
    assert move_due(LOG) == 0  # not here
    name(here())
    assert move_due(LOG) == 5
    assert log() == [1, 2, 3, 4, None]
    assert waiting() == []
    last = Message.objects.order_by("offset").last()
    assert last is not None
    assert (bytes(last.body), Message.objects.get(message_id="four").partition_key) == (b"5", "k")
    assert last.expires_at is not None
    left = last.expires_at - datetime.now(timezone.utc)
    assert timedelta(0) < left <= timedelta(seconds=61)
    assert Message.objects.get(payload=3).headers == {"a": 1}


def test_on_the_named_server_messages_enter_the_log_unless_others_are_on_their_way() -> None:
    publish("t", 1, key="k")
    name(here())
    with transaction.atomic():
        assert publish("t", 2, key="k").offset is None  # it would overtake
    assert publish("t", 3, id="b").offset is None
    assert publish_many("t", [4, 5]).created == 2
    assert move_due(LOG) == 5
    assert publish("t", 6).offset is not None
    assert log() == [1, 2, 3, 4, 5, 6]


def test_a_later_message_of_a_key_is_due_later_whatever_its_servers_clock_says() -> None:
    publish("t", 1, key="k")
    ahead = datetime.now(timezone.utc) + timedelta(seconds=100)
    ScheduledMessage.objects.update(due_at=ahead)  # by a clock that is ahead
    publish_many("t", [NewMessage(number, key="k") for number in range(2, 5)])
    publish("t", 5, key="k")
    publish("t", "other", key="another")
    assert waiting() == ["other", 1, 2, 3, 4, 5]
    assert ScheduledMessage.objects.filter(due_at__gt=ahead).count() == 4


def test_a_message_that_was_postponed_is_not_on_its_way_any_more() -> None:
    publish("t", 1, key="k", id="a")
    publish("t", 2, key="k", id="a", on_conflict="replace", delay=forwarding.CLOCK_TOLERANCE + 60)
    assert ScheduledMessage.objects.get().pk < 0
    name(here())
    assert publish("t", 3, key="k").offset is not None
    name("another")
    publish("t", 4, key="k")
    name(here())
    assert move_due(LOG) == 1
    assert log() == [3, 4]


def test_nothing_enters_the_log_until_the_barrier_has_been_carried_out() -> None:
    name("-" + here())
    assert publish("t", 1).offset is None
    assert move_due(LOG) == 0
    assert writer.open_log(LOG)
    assert not writer.open_log(LOG)
    server_identity.forget_session(LOG)
    assert move_due(LOG) == 1


def test_an_id_counts_once_and_is_found_among_forwarded_messages() -> None:
    name(here())
    publish("t", 1, id="a")
    name("another")
    assert publish("t", 2, id="a").status == "ignored"
    assert [publish("t", number, id="b").status for number in (3, 4)] == ["created", "ignored"]
    many = publish_many("t", [NewMessage(5, id="b"), NewMessage(6, id="c"), NewMessage(7, id="c")])
    assert many.statuses == ["ignored", "created", "ignored"]
    assert get_scheduled("t", id="b") is not None
    status = get_status("t", id="b")
    assert status is not None
    assert (status.offset, status.due_at is None) == (None, False)
    assert publish("t", 8, id="c", on_conflict="replace").status == "updated"
    name(here())
    assert publish("t", 9, id="b").status == "ignored"
    move_due(LOG)
    assert log() == [1, 3, 8]


def test_an_id_is_scheduled_once_beside_forwarding_whoever_has_looked_before() -> None:
    publish("t", 1, id="a")
    assert (
        insert_scheduled(LOG, [LogRow("t", 0, 0, "", "a", "2", None, "", scheduled_for=60.0)], may_repeat=True) == set()
    )
    assert waiting() == [1]


def test_what_was_forwarded_can_be_cancelled() -> None:
    publish("t", 1, id="a")
    publish_many("t", [NewMessage(number, key="k") for number in range(3)])
    assert cancel("t", id="a")
    assert not cancel("t", id="a")
    assert cancel_all("t", key="k") == 3
    assert waiting() == []


def test_a_unique_message_is_pending_while_it_is_forwarded() -> None:
    assert publish("t", 1, key="k", unique_for=60).status == "created"
    assert publish("t", 2, key="k", unique_for=60).status == "ignored"
    assert publish("t", 3, key="other", unique_for=60).status == "created"
    assert waiting() == [1, 3]


def test_what_was_scheduled_waits_for_the_named_server() -> None:
    publish("t", 1, delay=3600)
    ScheduledMessage.objects.update(due_at=datetime.now(timezone.utc) - timedelta(seconds=1))
    move_due(LOG)
    assert log() == []
    name(here())
    move_due(LOG)
    assert log() == [1]


def test_a_message_that_cannot_enter_the_log_holds_up_no_other() -> None:
    publish("t", 1)
    publish("u", 2)
    ScheduledMessage.objects.filter(topic="t").update(priority=7)
    name(here())
    while move_due(LOG):
        pass
    assert log() == [2]
    assert "priority 7" in (ScheduledMessage.objects.get(refused=True).refusal or "")
    assert publish("u", 3).offset is not None  # it waits for nothing


def test_a_missing_row_of_the_gate_is_no_reason_to_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    for server in ("", "another"):
        name(server)
        monkeypatch.setattr("sqlqueue.database.insert_sql.slot", lambda: 100_000)
        with pytest.raises(IntegrityError, match="topic"):
            publish("t", 1)
        monkeypatch.undo()
        publish("u", 1)  # and learns
    assert waiting() == [1]


def test_a_row_that_the_gate_lacked_names_the_same_server() -> None:
    PublishGate.objects.filter(slot=7).delete()
    fill(LOG)
    row = PublishGate.objects.get(slot=7)
    assert (row.writer, row.generation) == ("another", 0)


def test_a_server_that_names_none_asks_for_no_server() -> None:
    name("")
    publish("t", 1)
    with CaptureQueriesContext(connection) as seen:
        publish("t", 2)
    texts = [query["sql"] for query in seen if "SUBSCRIBER" not in query["sql"].upper()]  # whom to wake
    assert len(texts) == 1
    assert "@@hostname" not in texts[0]
    assert "sqlqueue_scheduled_message" not in texts[0]


def test_partitions_are_changed_on_the_named_server_alone() -> None:
    publish("t", 0, key="k")
    name(here())
    move_due(LOG)
    begin(LOG, "t", 3)
    assert set(PublishGate.objects.filter(slot__gte=0).values_list("writer", flat=True)) == {here()}
    name("another")
    with pytest.raises(Exception, match="where consumers run"):
        Repartition(LOG).step()
    publish("t", 1, key="k")
    name(here())
    for _ in Repartition(LOG).run(0):
        pass
    move_due(LOG)
    assert log() == [0, 1]
    assert publish("t", 2, key="k").offset is not None
    assert LOG.layout.named
    assert LOG.layout.placings["t"].block.partitions == 3


def test_the_horizon_rises_on_the_named_server_alone() -> None:
    name(here())
    publish("t", 1)
    look(LOG)
    name("another")
    LOG.has_writer = False  # who has not looked since must not believe the locks of this one either
    horizon = Horizon(LOG)
    for _ in range(3):
        assert horizon.probe(highest_offset(LOG)) == 0
    name("-" + here())
    assert horizon.probe(highest_offset(LOG)) == 0
    name(here())
    assert horizon.probe(highest_offset(LOG)) > 0


def test_a_task_whose_server_is_no_longer_the_named_one_looks_again(settings: object) -> None:
    """Its connection was led there once, and would lead it there for ever."""
    settings.SQLQUEUE = {"TOPICS": {"t": {"partitions": 1}}}
    name(here())
    publish("t", 1)
    begin(LOG, "t", 3)
    task = CollectorTask(LOG, 0.0, 30.0)
    task._guarded(task.run_once)
    assert not task.trouble.failing
    Duty.objects.all().delete()
    begin(LOG, "t", 4)
    PublishGate.objects.filter(slot__gte=0).update(writer="another")
    PublishGate.objects.filter(slot=NAMED).update(writer="another")
    assert connection.sqlqueue_session is not None
    task._guarded(task.run_once)
    assert connection.sqlqueue_session is None


def test_a_connection_to_another_server_is_of_no_use_to_a_consumer() -> None:
    opened: list[object] = []
    connection_created.connect(lambda **told: opened.append(told), weak=False, dispatch_uid="detour")
    with pytest.raises(NotNamedServer, match="'another'"):
        look(LOG)
    connection_created.disconnect(dispatch_uid="detour")
    assert len(opened) >= CONNECTIONS_TRIED - 1
    with transaction.atomic(), pytest.raises(NotNamedServer):
        look(LOG)
    name("-" + here())
    with pytest.raises(NotNamedServer):
        look(LOG)  # and no other connection is tried
    assert len(opened) <= CONNECTIONS_TRIED + 1
    name(here())
    assert ServerIdentity(LOG).identity
    LOG.execute("SELECT 1")


def test_what_cannot_be_forwarded_is_refused() -> None:
    with pytest.raises(GateElsewhere) as raised:
        insert_new(LOG, [LogRow("t", 0, 0, "", "a", "1", None, "")], overtakes=True)
    assert classify(raised.value) is ErrorKind.CONTENTION  # tried again, and by then the loop has looked


def test_the_server_takes_over_from_one_whose_name_is_not_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    changes: list[str] = []
    task = NamedServerTask(LOG, lambda: changes.append(writer.writer_state(LOG).writer))
    publish("t", 1)
    task.run_once()
    PublishGate.objects.filter(slot=NAMED).update(value=2)
    monkeypatch.setattr("sqlqueue.consumers.background.writer.TAKE_OVER_AFTER", 0.0)
    task.run_once()  # it was renewed: but after no time at all it takes over
    assert writer.writer_state(LOG).writer == "-" + here()
    task.run_once()
    assert changes == ["-" + here()]
    gate = PublishGate.objects.filter(slot__gte=0)
    assert set(gate.values_list("writer", "generation")) == {(here(), 0)}
    task.run_once()
    assert move_due(LOG) == 1
    assert writer.writer_state(LOG).renewals > 3


def test_who_lets_a_server_take_over_has_time_to_open_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sqlqueue.consumers.background.writer.TAKE_OVER_AFTER", 0.0)
    name("-another")
    task = NamedServerTask(LOG, lambda: None)
    assert not task.run_once()
    assert not task.run_once()
    assert writer.writer_state(LOG).writer == "-another"
    monkeypatch.setattr("sqlqueue.consumers.background.writer.OPEN_AFTER", 0.0)
    assert task.run_once()
    assert writer.writer_state(LOG).writer == "-" + here()


def test_one_process_opens_the_log_and_another_one_only_if_it_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    name("-" + here())
    changes: list[str] = []
    task = NamedServerTask(LOG, lambda: changes.append(writer.writer_state(LOG).writer))
    assert not task.run_once()
    assert writer.writer_state(LOG).closed
    monkeypatch.setattr("sqlqueue.consumers.background.writer.HELP_AFTER", 0.0)
    assert task.run_once()
    task.run_once()
    assert changes == [here()]


def test_a_lost_connection_makes_nobody_wait_longer_for_a_server_that_is_gone() -> None:
    task = NamedServerTask(LOG, lambda: None)
    task.run_once()
    task._since -= TAKE_OVER_AFTER
    task.forget()
    task.run_once()
    assert writer.writer_state(LOG).server == here()


def test_a_task_looks_for_the_server_that_was_named_meanwhile() -> None:
    name(here())
    publish("t", 1)
    look(LOG)
    PublishGate.objects.exclude(writer="").update(writer="another")
    server_identity.lead(LOG)  # it has not been told

    def copy() -> bool:
        return bool(insert_new(LOG, [LogRow("t", 0, 0, "", "a", "1", None, "")], overtakes=True))

    task = BackgroundTask(LOG, "copying", 1.0, copy)
    task._guarded(task.run_once)
    with pytest.raises(NotNamedServer):
        server_identity.lead(LOG)


def test_consumers_of_a_server_that_gets_a_clusters_data_let_it_take_over(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = QUICK
    monkeypatch.setattr("sqlqueue.consumers.background.writer.TAKE_OVER_AFTER", 0.5)
    name("")
    done: list[object] = []
    consuming.consumer("t", lambda delivery: done.append(delivery.payload), group="g", start="earliest")
    host = consuming.start()
    publish("t", 1)
    wait_until(lambda: done == [1])
    name("gone")
    host.subscriber.ownership.server.doubtful = True  # as after the restart of the server
    publish("t", 2)
    wait_until(lambda: done == [1, 2])


def test_the_loop_renews_the_name_if_only_its_connection_leads_to_the_named_server(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = QUICK
    name(here())
    elsewhere = writer.WriterState(here(), 1, "another")
    monkeypatch.setattr(NamedServerTask, "run_once", partialmethod(led_to, elsewhere))
    consuming.consumer("t", lambda delivery: None, group="g")
    consuming.start()
    wait_until(lambda: writer.writer_state(LOG).renewals > 2)


def test_the_first_server_is_named_at_once() -> None:
    name("")
    task = NamedServerTask(LOG, lambda: None)
    while writer.writer_state(LOG).writer != here():
        assert task.run_once()
    assert publish("t", 1).offset is not None
    assert LOG.layout.named


def test_a_missing_row_for_the_name_is_told() -> None:
    PublishGate.objects.filter(slot=NAMED).delete()
    with pytest.raises(ConfigurationError, match="run migrate"):
        NamedServerTask(LOG, lambda: None).run_once()
    fill(LOG)
    assert writer.writer_state(LOG).writer == "another"


def test_of_two_servers_that_take_over_one_does() -> None:
    seen = writer.writer_state(LOG)
    assert writer.take_over(LOG, seen)
    assert not writer.take_over(LOG, seen)


def test_consumers_take_over_and_deliver_what_was_forwarded(
    consuming: Consuming, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.SQLQUEUE = QUICK
    monkeypatch.setattr("sqlqueue.consumers.background.writer.TAKE_OVER_AFTER", 0.5)
    publish("t", 1, key="k")
    done: list[object] = []
    consuming.consumer("t", lambda delivery: done.append(delivery.payload), group="g", start="earliest")
    consuming.start()
    publish("t", 2, key="k")
    wait_until(lambda: done == [1, 2])


def test_more_than_one_statement_takes_are_moved_in_order() -> None:
    numbers = list(range(1_001))
    publish_many("t", [NewMessage(number, key="k") for number in numbers])
    name(here())
    while move_due(LOG):
        pass
    assert log() == numbers


def test_numbers_of_forwarded_messages_fit_the_pages_of_the_admin(monkeypatch: pytest.MonkeyPatch) -> None:
    from sqlqueue.admin.pages import NUMBER

    for highest in (True, False):
        monkeypatch.setattr(forwarding.secrets, "randbits", lambda bits, value=highest: (1 << bits) - 1 if value else 0)
        publish("t", highest)
    numbers = list(ScheduledMessage.objects.order_by("pk").values_list("pk", flat=True))
    assert len(numbers) == 2
    assert all(number < 0 and NUMBER.fullmatch(str(number)) for number in numbers)


def test_the_admin_shows_what_was_forwarded(admin_client: Client) -> None:
    publish("t", {"shown": "here"})
    number = ScheduledMessage.objects.get().pk
    page = admin_client.get(reverse("admin:sqlqueue_scheduledmessage_change", args=[number]))
    assert page.status_code == 200
    assert "shown" in page.content.decode()


def test_the_admin_lets_bytes_that_were_forwarded_be_saved(admin_client: Client) -> None:
    publish("t", b"\x00here")
    number = ScheduledMessage.objects.get().pk
    url = reverse("admin:sqlqueue_scheduledmessage_body", args=[number])
    assert url in admin_client.get(reverse("admin:sqlqueue_scheduledmessage_change", args=[number])).content.decode()
    assert admin_client.get(url).content == b"\x00here"


def test_a_caller_gets_the_reply_of_a_message_that_left_the_log_before_it_was_seen_there() -> None:
    with closing(Call("t", NewMessage(1, key="k"), 60)) as waiting_call:
        assert not waiting_call.look()
        name(here())
        move_due(LOG)
        message = Message.objects.get()
        Result.objects.create(
            message_id=message.message_id,
            topic="t",
            partition_key="k",
            consumer_group="g",
            outcome=ACKED,
            message_offset=message.offset,
            attempts=1,
            result={"n": 1},
            **dict.fromkeys(("started_at", "finished_at", "expires_at"), datetime.now(timezone.utc)),
        )
        message.delete()
        assert waiting_call.look()
    assert waiting_call.value == {"n": 1}


def test_a_server_of_a_long_name_is_told_by_its_beginning() -> None:
    long = HERE.replace("@@datadir", "REPEAT('d', 1000)")
    (found,) = LOG.execute(f"SELECT {long}").fetchone()
    assert len(found) == SERVER_LENGTH
    name("-" + found)
    assert writer.writer_state(LOG).server == found
