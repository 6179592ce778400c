"""After a dump was restored, nothing that a process knew before counts."""

from collections.abc import Callable

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Model

from sqlqueue import publish
from sqlqueue.checks.databases import check_offsets
from sqlqueue.database import sequence
from sqlqueue.database.insert_sql import HORIZON
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases import heartbeat
from sqlqueue.leases.acquire import AcquiredPartition, acquire
from sqlqueue.log import fence, groups
from sqlqueue.models import Offset, PartitionLease, PublishGate
from sqlqueue.operations.recover import MOST_NAMED, recover
from tests.logs import LOG
from tests.processes import wait_until
from tests.subscribers import Handled, RunningSubscriber, consumer

pytestmark = pytest.mark.django_db(transaction=True)

Restore = Callable[[], None]


@pytest.fixture
def topic() -> str:
    publish("orders", 1, id="first")
    groups.register(LOG, "default", "orders")
    return "orders"


def take(subscriber: str) -> AcquiredPartition:
    """Acquire partition 0."""
    options = {"priorities": 1, "lease_duration": 3600, "horizon": 0}
    (taken,) = acquire(LOG, subscriber, "default", "orders", [0], **options)
    return taken


def dump() -> Restore:
    """Return what brings the leases and positions back as they are now."""
    kinds: tuple[type[Model], ...] = (PartitionLease, Offset)
    rows = {kind: list(kind._default_manager.values()) for kind in kinds}

    def restore() -> None:
        for kind, found in rows.items():
            kind._default_manager.all().delete()
            kind._default_manager.bulk_create([kind(**row) for row in found])

    return restore


def test_an_owner_from_after_the_dump_is_taken_for_nobody_elses_token(topic: str) -> None:
    take("before")
    restore = dump()
    PartitionLease.objects.update(holder="", valid_until=None)
    forgotten = take("after")
    for recovers in (False, True):
        restore()
        if recovers:
            recover(LOG)
        else:
            PartitionLease.objects.update(holder="", valid_until=None)
        take("new")
        # Without a recovery the new owner has the token of one that the dump does not know.
        assert fence.advance(LOG, forgotten, 0, 0, 0) is not recovers


def test_leases_are_free_at_once_and_what_was_in_flight_is_delivered(topic: str) -> None:
    first = Handled()
    with RunningSubscriber(consumer("orders", first)):
        wait_until(lambda: first.counts == {"first": 1})
    publish("orders", 2, id="second")
    PartitionLease.objects.update(holder="of before the restore", valid_until="2999-01-01T00:00:00Z")
    before = list(Offset.objects.order_by("id").values_list("position", "offset_acked", "claimed_to"))
    call_command("queuerecover", "--no-input", verbosity=0)
    assert not PartitionLease.objects.exclude(holder="").exists()
    tokens = {*PartitionLease.objects.values_list("fencing_token", flat=True)}
    tokens |= {*Offset.objects.values_list("fencing_token", flat=True)}
    assert len(tokens) == 1
    assert list(Offset.objects.order_by("id").values_list("position", "offset_acked", "claimed_to")) == before
    handled = Handled()
    with RunningSubscriber(consumer("orders", handled)):
        wait_until(lambda: handled.counts == {"second": 1})


def test_the_horizon_that_many_consumers_shared_counts_no_more(topic: str) -> None:
    rows = PublishGate.objects.filter(slot=HORIZON)
    rows.update(value=1)
    recover(LOG)
    assert rows.get().value == 0


def test_no_message_is_published_below_the_shared_horizon_after_the_log_was_truncated(topic: str) -> None:
    """Consumers would not wait for the transactions that publish there."""
    horizon = sequence.look(LOG).last_issued + 1_000
    PublishGate.objects.filter(slot=HORIZON).update(value=horizon)
    assert [problem.id for problem in check_offsets(["default"])] == ["sqlqueue.E024"]
    sequence.catch_up(LOG)  # as `migrate` does
    assert check_offsets(["default"]) == []
    assert publish("orders", "next").offset > horizon


def test_it_may_be_run_again_and_gives_higher_tokens(topic: str) -> None:
    take("one")
    first, second = recover(LOG).token, recover(LOG).token
    assert 1 < first < second


def test_while_processes_live_it_is_refused_and_names_some(topic: str) -> None:
    for number in range(MOST_NAMED + 1):
        heartbeat.beat(LOG, f"alive-{number}", [("default", "orders")], 60)
    take("alive-0")
    with pytest.raises(ConfigurationError, match=r"^6 processes consume \(alive-0, .*alive-4 and others\): stop them"):
        recover(LOG)
    assert PartitionLease.objects.filter(holder="alive-0", fencing_token=1).exists()


def test_a_dry_run_counts_and_changes_nothing(topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    take("one")
    before = list(PartitionLease.objects.order_by("id").values())
    call_command("queuerecover", "--dry-run")
    assert "of which processes hold 1, and 1 offset rows. The highest fencing token is 1." in capsys.readouterr().out
    call_command("queuerecover", "--dry-run", "--json")
    assert '"done": false' in capsys.readouterr().out
    assert list(PartitionLease.objects.order_by("id").values()) == before
    with pytest.raises(CommandError, match="asks no questions"):
        call_command("queuerecover", "--json")
