"""`manage.py runconsumers`: what it checks, tells, runs, and how it ends."""

import json
import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.consumers.process.supervisor import STARTS_TRIED
from sqlqueue.consumers.process.worker import LOOK_EVERY
from sqlqueue.log.groups import register
from sqlqueue.log.topic_options import override
from sqlqueue.models import (
    ConsumerGroup,
    DeliveryState,
    Offset,
    PartitionLease,
    Receipt,
    SubscriberHeartbeat,
    Topic,
)
from tests.app.models import Effect
from tests.consumer_processes import heartbeats
from tests.logs import LOG
from tests.processes import ManageCommand, wait_until
from tests.transactions import OpenTransaction

pytestmark = pytest.mark.once

Run = Callable[..., ManageCommand]


def values(name: str) -> list[str]:
    return list(Effect.objects.filter(name=name).order_by("id").values_list("value", flat=True))


def assert_no_process_is_left() -> None:
    assert not PartitionLease.objects.exclude(holder="").exists()
    assert not SubscriberHeartbeat.objects.exists()
    assert not DeliveryState.objects.filter(in_flight__gt=0).exists()


class TestCheck:
    def test_it_tells_everything_that_would_run_and_starts_nothing(self, run: Run, database_name: str) -> None:
        command = run("--check", "--processes", "3", "--threads", "7", "--drain", LEASE_DURATION=44)
        assert command.wait() == 0, command.output
        (line,) = [line for line in command.output.splitlines() if line.startswith("event=starting")]
        for word in ("processes=3", "threads=7", "drain=True", "lease=44.000", "default:"):
            assert word in line
        names = {"sqlite": "SQLite", "mariadb": "MariaDB", "mysql": "MySQL", "postgresql": "PostgreSQL"}
        assert names[database_name] in line
        assert "aircraft/flights→tests.management.handlers.move (ordering=key attempts=5 timeout=60s)" in line
        assert "delays/flights→tests.management.handlers.add (ordering=key batch=10 atomic" in line
        assert "All is well." in command.output
        assert not ConsumerGroup.objects.exists()
        assert not SubscriberHeartbeat.objects.exists()

    def test_it_refuses_with_all_problems_together(self, run: Run) -> None:
        command = run("--check", "--processes", "-1", "--threads", "0", LEASE_DURATION=5, THREDS=3)
        assert command.wait() == 1
        for problem in (
            "--processes must be a whole number from 0 to 1000, not -1",
            "--threads must be a whole number from 1 to 1000, not 0",
            "'THREDS'. Did you mean 'THREADS'?",
            "at least twice HEARTBEAT_INTERVAL",
        ):
            assert problem in command.output
        assert "Traceback" not in command.output

    def test_it_refuses_two_handlers_for_one_group_and_topic(self, run: Run) -> None:
        command = run("--check", CONSUMERS_MODULE="wrong")
        assert command.wait() == 1
        assert re.search(r"wrong\.one and .*wrong\.two both handle topic 'flights'.*E011", command.output)

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("--group", "aircraf"), "no handler is registered for group 'aircraf'. Did you mean 'aircraft'?"),
            (("--topic", "fligths"), "no handler is registered for topic 'fligths'. Did you mean 'flights'?"),
            (("--group", "delays", "--topic", "slow"), "no handlers"),
        ],
    )
    def test_it_refuses_what_no_consumer_handles(self, run: Run, arguments: tuple[str, ...], said: str) -> None:
        command = run("--check", *arguments)
        assert command.wait() == 1
        assert said in command.output

    def test_it_refuses_a_project_without_handlers(self, run: Run) -> None:
        command = run("--check", CONSUMERS_MODULE="nowhere")
        assert command.wait() == 1
        assert "no app has a nowhere.py with a @consumer" in command.output

    def test_it_refuses_tables_that_are_not_up_to_date(self, run: Run) -> None:
        recorder = MigrationRecorder(connection)
        recorder.record_unapplied("sqlqueue", "0001_initial")
        try:
            command = run("--check")
            assert command.wait() == 1
            assert "run `python manage.py migrate sqlqueue`" in command.output
        finally:
            recorder.record_applied("sqlqueue", "0001_initial")


class TestSettings:
    """They reach the topics that are there when consumers start."""

    TOPICS: ClassVar = {"flights": {"retention": 5, "history": "all", "partitions": 8}}

    def test_a_check_tells_what_would_change_and_changes_nothing(self, run: Run) -> None:
        publish("flights", 1)
        override(LOG, "flights", {"history": "none"})
        before = Topic.objects.values().get()
        command = run("--check", TOPICS=self.TOPICS)
        assert command.wait() == 0, command.output
        assert "retention of topic 'flights': 604800 s, 5 s once consumers start" in command.output
        assert "history of topic 'flights': none, overridden, so it stays" in command.output
        assert re.search(
            r"topic 'flights' has 32 partitions, .* say 8 .*W030.*queuetopic alter flights --partitions 8",
            command.output,
        )
        assert "topic 'slow' is not declared" in command.output
        assert Topic.objects.values().get() == before

    @pytest.mark.parametrize("processes", ["0", "1"])
    def test_a_start_applies_them(self, run: Run, processes: str) -> None:
        publish("flights", 1)
        command = run("--drain", "--processes", processes, TOPICS=self.TOPICS)
        assert command.wait() == 0, command.output
        assert 'event=topic_options_applied topic=flights option=retention old="604800 s" new="5 s"' in command.output
        assert command.output.count("event=topic_options_applied") == 2
        topic = Topic.objects.get(name="flights")
        assert (topic.retention, topic.history, topic.partitions) == (5, "all", 32)
        assert Receipt.objects.count() == 2
        assert set(Topic.objects.values_list("name", flat=True)) == {"flights"}

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_a_topic_that_is_locked_holds_up_no_start_and_follows(self, run: Run) -> None:
        publish("flights", 1)
        for group in ("aircraft", "delays"):  # a registration would wait
            register(LOG, group, "flights")
        with OpenTransaction() as collection:
            collection.do(lambda: list(Topic.objects.select_for_update()))
            command = run(TOPICS=self.TOPICS)
            command.wait_for_line("event=subscriber_started")
            assert "topic_options_applied" not in command.output
            collection.commit()
        command.wait_for_line("event=topic_options_applied topic=flights option=retention")
        command.terminate()
        assert command.wait() == 0, command.output


class TestDrain:
    def test_two_processes_settle_everything_that_is_due_and_leave(self, run: Run) -> None:
        publish_many("flights", [NewMessage(number, key=f"k{number % 20}") for number in range(300)])
        publish("flights", "later", delay=3600)
        command = run("--drain", "--processes", "2", BALANCE_INTERVAL=0.2)
        assert command.wait() == 0, command.output
        assert sorted(int(value.partition("@")[0]) for value in values("aircraft")) == list(range(300))
        assert sorted(map(int, values("delays"))) == list(range(300))
        assert_no_process_is_left()
        assert command.output.count("event=process_started") == 2
        assert "event=process_died" not in command.output

    def test_two_processes_of_four_threads_run_eight_handlers_at_once(self, run: Run) -> None:
        publish_many("gated", [NewMessage(number, key=f"k{number}") for number in range(64)])
        command = run("--drain", "--processes", "2", "--topic", "gated", BALANCE_INTERVAL=0.2, THREADS=4)
        wait_until(lambda: sorted(Counter(values("began")).values()) == [4, 4], message=lambda: str(values("began")))
        assert values("ended") == []
        Effect.objects.create(name="open")
        assert command.wait() == 0, command.output
        assert len(values("ended")) == 64

    def test_a_group_alone(self, run: Run) -> None:
        publish("flights", 1)
        assert run("--drain", "--group", "delays").wait() == 0
        assert (values("delays"), values("aircraft")) == (["1"], [])

    def test_processes_that_cannot_start_end_it(self, run: Run) -> None:
        publish("flights", 1)
        command = run("--drain", "--processes", "2", CONSUMERS_MODULE="childless")
        assert command.wait() == 1, command.output
        assert command.output.count("RuntimeError: no room for me") >= STARTS_TRIED
        assert f"event=drain_given_up died={STARTS_TRIED} exit=1" in command.output
        assert_no_process_is_left()

    def test_a_main_module_that_runs_when_it_is_imported_is_named(self, run: Run, tmp_path: Path) -> None:
        script = tmp_path / "unguarded.py"
        script.write_text(
            "import sys; from django.core.management import execute_from_command_line as go; go(sys.argv)"
        )
        publish("flights", 1)
        command = run("--drain", script=script)
        assert command.wait() == 1, command.output
        assert f"imports its main module {script}" in command.output
        assert "Traceback" not in command.output

    def test_without_a_supervisor(self, run: Run) -> None:
        publish("flights", 1)
        command = run("--drain", "--processes", "0")
        assert command.wait() == 0, command.output
        assert Counter(Effect.objects.values_list("name", flat=True)) == {"aircraft": 1, "delays": 1}
        assert_no_process_is_left()


def test_its_processes_log_where_the_projects_logging_disables_existing_loggers(run: Run) -> None:
    to_standard_error = {
        "version": 1,
        "handlers": {"all": {"class": "logging.StreamHandler"}},
        "root": {"handlers": ["all"], "level": "INFO"},
    }
    command = run("--drain", env={"LOGGING": json.dumps(to_standard_error)})
    assert command.wait() == 0, command.output
    assert "event=subscriber_started" in command.output


class TestStopping:
    @pytest.mark.parametrize(
        ("how", "processes"),
        [(ManageCommand.terminate, "0"), (ManageCommand.terminate, "2"), (ManageCommand.interrupt, "2")],
        ids=["SIGTERM-0", "SIGTERM-2", "SIGINT-2"],
    )
    def test_it_ends_what_runs_and_releases_the_rest(
        self, run: Run, how: Callable[[ManageCommand], None], processes: str
    ) -> None:
        for number in range(60):
            publish("slow", number, key=f"k{number}")
        command = run("--processes", processes, "--threads", "2", "--topic", "slow")
        command.wait_for_line("event=starting")
        wait_until(lambda: values("began"))
        how(command)
        assert command.wait() == 0, command.output
        assert sorted(values("began")) == sorted(values("ended"))
        assert 0 < len(values("ended")) < 60
        assert_no_process_is_left()
        assert not DeliveryState.objects.filter(acked=False, retry_count__gt=0).exists(), "an attempt was charged"
        assert "event=subscriber_stopped" in command.output

    @pytest.mark.parametrize("processes", ["0", "1"])
    def test_a_drain_that_is_stopped_does_not_end_as_one_that_is_done(self, run: Run, processes: str) -> None:
        for number in range(60):
            publish("slow", number, key=f"k{number}")
        command = run("--drain", "--processes", processes, "--threads", "2", "--topic", "slow")
        wait_until(lambda: values("began"))
        command.terminate()
        assert command.wait() == 1, command.output
        assert sorted(values("began")) == sorted(values("ended"))
        assert len(values("ended")) < 60
        assert not DeliveryState.objects.filter(acked=False, retry_count__gt=0).exists(), "an attempt was charged"

    @pytest.mark.parametrize("processes", ["0", "1"])
    def test_a_second_signal_leaves_at_once(self, run: Run, processes: str) -> None:
        publish("stuck", 1)
        command = run("--topic", "stuck", "--processes", processes, SHUTDOWN_TIMEOUT=600)
        wait_until(lambda: values("began"))
        command.terminate()
        with pytest.raises(AssertionError, match="still runs"):
            command.wait(0.5)
        # Signals that come before the first one was noticed are one with it.
        wait_until(lambda: command.terminate() or command.returncode is not None)
        assert command.wait() != 0

    @pytest.mark.parametrize("first", ["the supervisor", "the processes"])
    def test_a_signal_to_the_whole_process_group_is_one_request(self, run: Run, first: str) -> None:
        """Either may be the first that a process hears of: its own signal, or the supervisor's command."""
        publish_many("gated", [NewMessage(number, key=f"k{number}") for number in range(40)])
        command = run("--processes", "2", "--threads", "2", "--topic", "gated", BALANCE_INTERVAL=0.2)
        processes = wait_until(lambda: len(begun := set(values("began"))) == 2 and begun)
        if first == "the supervisor":
            command.terminate()
            command.wait_for_line("event=stopping")
            time.sleep(0.3)  # they have its command by then
        for pid in processes:
            os.kill(int(pid), signal.SIGTERM)
        if first == "the processes":
            time.sleep(0.3)  # longer than the time within which signals to one process are one
            command.terminate()
            command.wait_for_line("event=stopping")
        Effect.objects.create(name="open")
        assert command.wait() == 0, command.output
        assert sorted(values("began")) == sorted(values("ended"))
        assert command.output.count("event=subscriber_stopped") == 2
        assert not DeliveryState.objects.filter(acked=False, retry_count__gt=0).exists(), "an attempt was charged"

    def test_a_signal_to_the_group_of_processes_that_have_not_started_ends_in_order(self, run: Run) -> None:
        command = run("--processes", "2", "--topic", "slow")
        command.wait_for_line("event=process_started")
        os.killpg(command.pid, signal.SIGTERM)
        assert command.wait() == 0, command.output

    @pytest.mark.parametrize("processes", ["0", "1"])
    def test_a_signal_that_is_sent_twice_at_once_is_one_request(self, run: Run, processes: str) -> None:
        """GNU timeout sends it to its command, and to the process group of that."""
        publish("slow", 1)
        command = run("--processes", processes, "--topic", "slow")
        wait_until(lambda: values("began"))
        command.terminate()
        time.sleep(0.05)  # it is noticed
        os.killpg(command.pid, signal.SIGTERM)
        assert command.wait() == 0, command.output
        assert values("ended") == ["1"]

    def test_a_second_signal_to_one_process_ends_it_at_once(self, run: Run) -> None:
        publish("stuck", 1)
        command = run("--topic", "stuck", SHUTDOWN_TIMEOUT=600)
        (pid,) = wait_until(lambda: values("began") and heartbeats().values())
        command.terminate()
        command.wait_for_line("event=stopping")
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(AssertionError, match="still runs"):
            command.wait(0.5)
        os.kill(pid, signal.SIGTERM)
        assert command.wait() == 1, command.output

    def test_a_handler_that_does_not_end_in_time_is_left_behind(self, run: Run) -> None:
        publish("stuck", 1)
        command = run("--topic", "stuck", "--processes", "0", SHUTDOWN_TIMEOUT=0.5)
        wait_until(lambda: values("began"))
        command.terminate()
        assert command.wait() == 0
        assert_no_process_is_left()
        assert list(DeliveryState.objects.values_list("acked", "retry_count")) in ([], [(False, 0)])

    def test_leases_are_free_for_the_next_at_once(self, run: Run) -> None:
        publish("flights", 1)
        first = run("--group", "delays")
        wait_until(lambda: values("delays") == ["1"])
        first.terminate()
        assert first.wait() == 0
        publish("flights", 2)
        run("--group", "delays")
        wait_until(lambda: values("delays") == ["1", "2"])


class TestSupervising:
    def test_a_process_that_dies_is_replaced_and_its_partitions_served(self, run: Run) -> None:
        publish("flights", 1, key="a")
        command = run("--group", "aircraft", "--topic", "flights")
        wait_until(lambda: values("aircraft"))
        pid = int(values("aircraft")[0].partition("@")[2])
        os.kill(pid, signal.SIGKILL)
        command.wait_for_line(rf"event=process_died child={pid}")
        publish("flights", 2, key="a")
        # The first comes again if its ack had not been written, so the second is not always the second value.
        (second,) = wait_until(lambda: [value for value in values("aircraft") if value.startswith("2@")])
        assert int(second.partition("@")[2]) != pid
        assert command.returncode is None

    def test_children_stop_when_their_supervisor_is_gone(self, run: Run) -> None:
        publish("flights", 1)
        command = run("--group", "aircraft", "--topic", "flights", "--processes", "2")
        wait_until(lambda: SubscriberHeartbeat.objects.count() == 2 and values("aircraft"))
        command.kill()
        wait_until(lambda: not SubscriberHeartbeat.objects.exists())
        assert not PartitionLease.objects.exclude(holder="").exists()
        assert Offset.objects.exists()


def test_its_processes_do_not_look_for_garbage_among_what_is_loaded(run: Run) -> None:
    publish("garbage", 1)
    command = run("--drain", "--topic", "garbage")
    assert command.wait() == 0, command.output
    (told,) = values("garbage")
    every, exempt = map(int, re.findall(r"\d+", told))
    assert every >= LOOK_EVERY
    assert exempt > 20_000  # Django and the project
