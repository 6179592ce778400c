"""`manage.py queuedlq`: list, replay, discard; and `queuerequests`."""

import json

import pytest

from sqlqueue import publish
from sqlqueue.management.commands import queuerequests
from sqlqueue.models import Message, Request
from sqlqueue.models.request import NEW
from sqlqueue.operations.replay_requests import request_replay
from tests.consuming import Consuming
from tests.factories import MessageFactory
from tests.logs import LOG
from tests.management.running import run
from tests.operations.test_replay_requests import Ledger
from tests.processes import ManageCommands, wait_until


@pytest.fixture
def ledger(consuming: Consuming) -> Ledger:
    """Five dead letters of one kind, and one of another."""
    ledger = Ledger()
    consuming.consumer("orders", ledger, group="billing")
    for number in (*range(5), 100):
        publish("orders", number, key="a", headers={"source": "test"})
    consuming.drain()
    assert letters() == 6
    return ledger


def letters() -> int:
    return Message.objects.dead_letters("billing", "orders").count()


class TestLooking:
    def test_the_list(self, ledger: Ledger) -> None:
        said = run("queuedlq", "list")
        assert said.code == 0
        rows = [line.split()[:3] for line in said.out.splitlines()[1:]]
        assert rows == [["5", "orders", "billing"], ["1", "orders", "billing"]]
        assert "no account for #" in said.out
        told = json.loads(run("queuedlq", "list", "--topic", "orders", "--group", "billing", "--json").out)
        assert [(kind["dead_letters"], kind["fingerprint"]) for kind in told["kinds"]] == [
            (5, "no account for #"),
            (1, "closed"),
        ]
        assert run("queuedlq", "list", "--group", "another").out == "There are no dead letters.\n"
        assert run("queuedlq", "list", "--topic", "order").code == 1

    def test_an_empty_queue(self, consuming: Consuming) -> None:
        assert run("queuedlq", "list").out == "There are no dead letters.\n"
        assert run("queuerequests", "list").out == "There are no requests.\n"


class TestReplay:
    def test_a_dry_run_counts(self, ledger: Ledger) -> None:
        said = run("queuedlq", "replay", "orders", "--fingerprint", "no account for #", "--dry-run")
        assert (said.code, said.out) == (0, "5 dead letters of topic 'orders' are chosen.\nNothing was done.\n")
        assert not Request.objects.exists()

    def test_it_asks_first(self, ledger: Ledger) -> None:
        assert run("queuedlq", "replay", "orders", stdin="n\n").code == 3
        assert not Request.objects.exists()
        assert run("queuedlq", "replay", "orders", stdin="yes\n").code == 0
        assert Request.objects.get().state == NEW

    def test_waiting_takes_part_in_it(self, ledger: Ledger, consuming: Consuming) -> None:
        """So it works while no consumer runs."""
        words = ("replay", "orders", "--group", "billing", "--fingerprint", "no account for #", "--no-input", "--wait")
        said = run("queuedlq", *words)
        assert said.code == 0
        assert "Done: 5 were delivered again." in said.out
        assert letters() == 1
        ledger.broken = False
        consuming.drain()
        assert ledger.seen == list(range(5))
        [order] = json.loads(run("queuerequests", "list", "--json").out)
        assert (order["state"], order["done"], order["total"]) == ("done", 5, 5)
        assert "no account for #" in run("queuerequests", "list").out

    def test_a_trial_that_dies_again_ends_with_1(self, ledger: Ledger, consuming: Consuming) -> None:
        consuming.start()
        said = run("queuedlq", "replay", "orders", "--no-input", "--trial", "--wait")
        assert said.code == 1
        assert "failed after 1 of 6: the first one, offset" in said.err
        wait_until(lambda: letters() == 6)

    def test_a_trial_that_succeeds(self, ledger: Ledger, consuming: Consuming) -> None:
        ledger.broken = False
        consuming.start()
        said = run("queuedlq", "replay", "orders", "--no-input", "--trial", "--wait", "--rate", "100")
        assert said.code == 0, said.err
        wait_until(lambda: len(ledger.seen) == 6)

    def test_what_cannot_be_delivered_again_is_named(self, ledger: Ledger) -> None:
        letter = Message.objects.dead_letters().order_by("offset").first()
        assert letter is not None
        place = {"partition": letter.partition, "partition_key": letter.partition_key}
        MessageFactory(topic="orders", **place, message_id=f"replay:{letter.offset}")
        said = run("queuedlq", "replay", "orders", "--no-input", "--wait")
        assert "Done: 5 were delivered again." in said.out
        assert f"dead letter {letter.offset} was skipped: " in said.err

    def test_single_ones(self, ledger: Ledger) -> None:
        first, second = Message.objects.dead_letters().order_by("offset").values_list("offset", flat=True)[:2]
        words = ("replay", "orders", "--offset", first, "--offset", second, "--no-input", "--wait")
        assert "Done: 2 were delivered again." in run("queuedlq", *words).out

    def test_an_interrupted_wait_says_how_to_cancel(self, ledger: Ledger, manage: ManageCommands) -> None:
        words = ("replay", "orders", "--no-input", "--wait", "--rate", "0.01")
        command = manage("queuedlq", *words)
        wait_until(lambda: letters() < 6)
        command.interrupt()
        assert command.wait() == 130, command.output
        assert "Traceback" not in command.output
        order = Request.objects.get()
        assert f"queuerequests cancel {order.pk}" in command.output
        assert "is cancelled" in run("queuerequests", "cancel", order.pk).out
        assert "nothing to do" in run("queuerequests", "cancel", order.pk).out
        assert run("queuerequests", "cancel", order.pk + 1).code == 1

    @pytest.mark.parametrize(
        ("words", "said"),
        [
            (("ordres",), "Did you mean"),
            (("orders", "--group", "another"), "nothing to replay"),
            (("orders", "--rate", "0", "--no-input"), "is not a number from 0.01 to 1,000,000"),
            (("orders", "--rate", "inf", "--no-input"), "is not a number from 0.01 to 1,000,000"),
            (("orders", "--rate", "nan", "--dry-run"), "is not a number from 0.01 to 1,000,000"),
        ],
    )
    def test_what_cannot_be_is_refused(self, ledger: Ledger, words: tuple[str, ...], said: str) -> None:
        refused = run("queuedlq", "replay", *words)
        assert refused.code == 1
        assert said in refused.err


class TestDiscard:
    def test_a_fingerprint(self, ledger: Ledger) -> None:
        words = ("discard", "orders", "--fingerprint", "no account for #")
        assert "5 dead letters of topic 'orders' are chosen" in run("queuedlq", *words, "--dry-run").out
        assert run("queuedlq", *words, stdin="").code == 3
        assert letters() == 6
        assert run("queuedlq", *words, "--no-input").out.endswith("\nDeleted 5 dead letters.\n")
        assert letters() == 1
        again = run("queuedlq", *words)
        assert (again.code, "nothing to discard" in again.out) == (0, True)


def test_the_newest_requests_are_listed(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queuerequests, "LISTED", 2)
    newest = [request_replay(LOG, "orders").pk for _ in range(3)]
    listed = json.loads(run("queuerequests", "list", "--json").out)
    assert [one["id"] for one in listed] == newest[:0:-1]
