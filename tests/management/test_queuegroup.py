"""`manage.py queuepause`, `queueresume` and `queuegroup`."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue import NewMessage, publish_many
from sqlqueue.log.groups import register
from sqlqueue.management.commands import queuegroup
from sqlqueue.models import ConsumerGroup, DeliveryState, Message, Topic
from sqlqueue.operations.move import move
from sqlqueue.stats.survey import survey
from tests.consuming import Consuming
from tests.logs import LOG
from tests.management.running import run
from tests.processes import wait_until


@pytest.fixture
def read(consuming: Consuming) -> list[int]:
    """The offsets of ten messages that group "mail" has read, and group "late" has not."""
    consuming.consumer("orders", lambda delivery: None, group="mail")
    publish_many("orders", range(10))
    consuming.drain()
    register(LOG, "late", "orders")
    return list(Message.objects.order_by("offset").values_list("offset", flat=True))


class TestPause:
    def test_a_topic(self, read: list[int]) -> None:
        assert "Paused topic 'orders'" in run("queuepause", "orders").out
        assert Topic.objects.get(name="orders").paused
        again = run("queuepause", "orders")
        assert (again.code, "was paused already" in again.out) == (0, True)
        assert "Resumed" in run("queueresume", "orders").out
        assert not Topic.objects.get(name="orders").paused
        assert "was not paused" in run("queueresume", "orders").out

    def test_a_group(self, read: list[int]) -> None:
        assert run("queuepause", "orders", "--group", "mail").code == 0
        paused = dict(ConsumerGroup.objects.values_list("consumer_group", "paused"))
        assert paused == {"mail": True, "late": False}
        assert run("queueresume", "orders", "--group", "mail").code == 0

    def test_what_is_not_there(self, read: list[int]) -> None:
        for name in ("queuepause", "queueresume"):
            assert "Did you mean 'orders'?" in run(name, "order").err
            refused = run(name, "orders", "--group", "mial")
            assert (refused.code, "Did you mean 'mail'?" in refused.err) == (1, True)


class TestRewind:
    def test_a_dry_run_counts_and_changes_nothing(self, read: list[int]) -> None:
        words = ("orders", "--group", "mail", "--from", read[6], "--dry-run")
        said = run("queuegroup", "rewind", *words)
        assert (said.code, "Nothing was done." in said.out) == (0, True)
        told = json.loads(run("queuegroup", "rewind", *words, "--json").out)
        assert told["groups"]["mail"]["again"] == 4
        assert told["done"] is False
        seen = survey(LOG).group("orders", "mail")
        assert seen is not None
        assert seen.lag == 0

    def test_it_asks_first(self, read: list[int]) -> None:
        words = ("orders", "--group", "mail", "--from", "earliest")
        for answer in ("", "n\n", "\n", "never\n"):
            assert run("queuegroup", "rewind", *words, stdin=answer).code == 3
        seen = survey(LOG).group("orders", "mail")
        assert seen is not None
        assert seen.lag == 0
        said = run("queuegroup", "rewind", *words, stdin="y\n")
        assert said.code == 0
        seen = survey(LOG).group("orders", "mail")
        assert seen is not None
        assert seen.lag == 10

    def test_what_was_rewound_is_delivered_again(self, read: list[int], consuming: Consuming) -> None:
        assert run("queuegroup", "rewind", "orders", "--group", "mail", "--from", read[7], "--no-input").code == 0
        again: list[int] = []
        consuming.consumer("orders", lambda delivery: again.append(delivery.offset), group="late")
        host = consuming.start("mail")
        wait_until(lambda: host.subscriber.settled == 3 and _lag("mail") == 0)

    def test_a_time_means_what_was_published_since(self, read: list[int]) -> None:
        old = timezone.now() - timedelta(hours=3)
        Message.objects.filter(offset__lt=read[7]).update(created_at=old)
        since = (old + timedelta(hours=1)).isoformat()
        for words in (("--from", since, "--dry-run"), ("--from", "2h", "--no-input")):
            told = json.loads(run("queuegroup", "rewind", "orders", "--group", "mail", "--json", *words).out)
            assert told["groups"]["mail"]["again"] == 3
        assert _lag("mail") == 3

    def test_one_partition(self, read: list[int]) -> None:
        partition = Message.objects.get(offset=read[0]).partition
        words = ("orders", "--all-groups", "--from", "earliest", "--no-input", "--json")
        told = json.loads(run("queuegroup", "rewind", *words, "--partition", partition).out)
        of_it = Message.objects.filter(partition=partition).count()
        assert {group: count["again"] for group, count in told["groups"].items()} == {"mail": of_it, "late": 0}
        assert told["done"] is True
        assert _lag("mail") == of_it

    def test_one_partition_is_refused_for_all_groups_where_one_began_later(self, read: list[int]) -> None:
        register(LOG, "new", "orders", start="latest")
        words = ("orders", "--all-groups", "--from", "earliest", "--no-input", "--partition", "0")
        refused = run("queuegroup", "rewind", *words)
        assert (refused.code, "group 'new' began at offset" in refused.err) == (1, True)
        assert _lag("mail") == 0

    def test_it_never_skips(self, read: list[int]) -> None:
        refused = run("queuegroup", "rewind", "orders", "--all-groups", "--from", read[5], "--no-input")
        assert refused.code == 1
        assert "group 'late' has partitions that have not read so far" in refused.err
        assert (_lag("mail"), _lag("late")) == (0, 10)

    def test_nothing_to_do(self, read: list[int]) -> None:
        said = run("queuegroup", "rewind", "orders", "--group", "mail", "--from", "latest")
        assert (said.code, "nothing to deliver again" in said.out) == (0, True)

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("orders", "--from", "earliest"), "name groups with --group NAME"),
            (("orders", "--from", "earliest", "--group", "mail", "--all-groups"), "name groups with"),
            (("orders", "--from", "earliest", "--group", "x"), "not registered"),
            (("orders", "--from", "earliest", "--group", "mail", "--partition", "9"), "partitions 0 to 3"),
            (("orders", "--from", "earliest", "--group", "mail", "--json"), "asks no questions"),
        ],
    )
    def test_what_cannot_be_is_refused(self, read: list[int], words: tuple[str, ...], said: str) -> None:
        refused = run("queuegroup", "rewind", *words)
        assert refused.code == 1
        assert said in refused.err


class TestSkip:
    def test_what_is_unread_is_passed_over_once_that_is_confirmed(self, read: list[int]) -> None:
        words = ("skip", "orders", "--group", "late", "--to", "latest")
        told = json.loads(run("queuegroup", *words, "--dry-run", "--json").out)
        assert (told["above"], told["done"]) == (read[-1], False)
        assert (told["groups"]["late"]["again"], told["groups"]["late"]["skipped"]) == (0, 10)
        assert run("queuegroup", *words, stdin="n").code == 3
        assert _lag("late") == 10
        assert run("queuegroup", *words, "--no-input").code == 0
        assert _lag("late") == 0
        said = run("queuegroup", *words)
        assert (said.code, "nothing to skip" in said.out) == (0, True)

    def test_it_never_delivers_again(self, read: list[int]) -> None:
        refused = run("queuegroup", "skip", "orders", "--all-groups", "--to", read[5], "--no-input")
        assert refused.code == 1
        assert "group 'mail' has partitions that have read further" in refused.err
        assert (_lag("mail"), _lag("late")) == (0, 10)

    def test_nor_what_was_read_while_it_asked(
        self, read: list[int], consuming: Consuming, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[int] = []
        consuming.consumer("orders", lambda delivery: seen.append(delivery.offset), group="late")

        def move_later(*args: Any, **options: Any) -> int:
            consuming.drain()
            return move(*args, **options)

        monkeypatch.setattr(queuegroup, "move", move_later)
        refused = run("queuegroup", "skip", "orders", "--group", "late", "--to", read[5], "--no-input")
        consuming.drain()
        assert sorted(seen) == read
        assert (refused.code, "has read further than offset" in refused.err) == (1, True)


class TestGroup:
    def test_a_group_is_removed(self, read: list[int]) -> None:
        words = ("remove", "orders", "late")
        said = run("queuegroup", *words, "--dry-run")
        assert "has 10 messages that it has not settled" in said.out
        assert run("queuegroup", *words, stdin="no").code == 3
        assert ConsumerGroup.objects.filter(consumer_group="late").exists()
        assert run("queuegroup", *words, "--no-input").code == 0
        assert not ConsumerGroup.objects.filter(consumer_group="late").exists()

    def test_one_that_is_served_is_kept_unless_forced(self, read: list[int], consuming: Consuming) -> None:
        consuming.start("mail")
        refused = run("queuegroup", "remove", "orders", "mail", "--no-input")
        assert refused.code == 1
        assert "stop them first" in refused.err
        assert ConsumerGroup.objects.filter(consumer_group="mail").exists()
        assert run("queuegroup", "remove", "orders", "mail", "--no-input", "--force").code == 0


def _lag(group: str) -> int:
    seen = survey(LOG).group("orders", group)
    assert seen is not None
    return seen.lag


class TestAcknowledge:
    def test_counts_asks_and_acknowledges(self, read: list[int]) -> None:
        which = ("orders", "--group", "late", "--offset", read[0], "--offset", read[1])
        dry = run("queuegroup", "acknowledge", *which, "--dry-run")
        assert (dry.code, "has not settled 2 of these messages" in dry.out) == (0, True)
        assert not DeliveryState.objects.exists()
        done = run("queuegroup", "acknowledge", *which, "--no-input")
        assert (done.code, "2 acknowledged." in done.out) == (0, True)
        acked = DeliveryState.objects.filter(acked=True, consumer_group="late")
        assert set(acked.values_list("message_offset", flat=True)) == set(read[:2])
        assert "Nothing was done." in run("queuegroup", "acknowledge", *which, "--no-input").out

    def test_by_key_and_by_id(self, read: list[int]) -> None:
        publish_many("orders", [NewMessage(n, key="k", id=f"i{n}") for n in range(3)])
        which = ("orders", "--group", "late", "--key", "k", "--no-input")
        assert "1 acknowledged." in run("queuegroup", "acknowledge", *which, "--id", "i1").out
        assert "2 acknowledged." in run("queuegroup", "acknowledge", *which).out

    def test_what_is_meant_has_to_be_said(self, read: list[int]) -> None:
        refused = run("queuegroup", "acknowledge", "orders", "--group", "late", "--no-input")
        assert (refused.code, "say which messages" in refused.err) == (1, True)
        assert "Did you mean 'late'?" in run("queuegroup", "acknowledge", "orders", "--group", "lat", "--key", "k").err
