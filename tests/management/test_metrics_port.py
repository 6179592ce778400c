"""`runconsumers --metrics-port`: what all processes have counted, however often they die, and how everything stands."""

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sqlqueue import NewMessage, publish, publish_many
from sqlqueue.models import PartitionLease, SubscriberHeartbeat
from tests.app.models import Effect
from tests.asking import ask, port_of
from tests.processes import ROOT, ManageCommand, wait_until

pytestmark = pytest.mark.once

Run = Callable[..., ManageCommand]
RELOADED = "from tests.management.settings import *\nDEBUG = True\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the processes keep what is temporary."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


def scrape(port: int) -> dict[tuple, float]:
    answer = ask(port, "/metrics")
    assert answer.status == 200, answer
    return {
        (sample.name, *sorted((label, value) for label, value in sample.labels.items() if value)): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def settled(port: int) -> int:
    """Return how many deliveries have been acked, of all groups."""
    return int(sum(value for key, value in scrape(port).items() if _is_acked(key)))


def _is_acked(key: tuple) -> bool:
    return key[0] == "sqlqueue_settled_total" and ("outcome", "acked") in key[1:]


def shares() -> list[set[str]]:
    """Return who holds the partitions of `flights`, for each group."""
    leases = PartitionLease.objects.filter(topic="flights").values_list("holder", flat=True)
    return [set(leases.filter(consumer_group=group)) for group in ("aircraft", "delays")]


def publish_some(count: int, first: int = 0) -> None:
    publish_many("flights", [NewMessage(number, key=f"k{number % 20}") for number in range(first, first + count)])


@pytest.mark.parametrize("count", ["0", "2"])
def test_it_tells_what_all_processes_have_done_and_how_everything_stands(run: Run, count: str) -> None:
    command = run("--processes", count, "--metrics-port", "0", BALANCE_INTERVAL=0.2, STATS_INTERVAL=0)
    port = port_of(command, "metrics")
    wait_until(lambda: scrape(port).get(("sqlqueue_subscribers",)) == max(1, int(count)))
    wait_until(lambda: all(len(holders) == max(1, int(count)) and "" not in holders for holders in shares()))
    publish_some(100)
    wait_until(lambda: settled(port) == 200, message=lambda: f"{settled(port)} of 200")
    found = scrape(port)
    for group in ("aircraft", "delays"):
        place = (("group", group), ("topic", "flights"))
        assert found[("sqlqueue_delivered_total", *place)] == 100
        assert found[("sqlqueue_latency_seconds_count", *place)] == 100
        assert found[("sqlqueue_lag_messages", *place)] == 0
    assert found[("sqlqueue_handler_seconds_count", ("group", "aircraft"), ("topic", "flights"))] == 100
    assert found[("sqlqueue_database_up",)] == 1
    pids = {value.partition("@")[2] for value in Effect.objects.values_list("value", flat=True) if "@" in value}
    assert len(pids) == max(1, int(count)), "all of them have worked"
    assert [ask(port, path).status for path in ("/", "/metrics/x", "/health/live")] == [404, 404, 404]


def test_a_process_that_dies_takes_nothing_of_it_away(run: Run, folder: Path) -> None:
    command = run("--metrics-port", "0", env={"TMPDIR": str(folder)})
    port = port_of(command, "metrics")
    publish_some(50)
    wait_until(lambda: settled(port) == 100)
    (shared,) = folder.glob("sqlqueue-metrics-*")
    dead: set[int] = set()
    for kills in range(1, 3):
        (pid,) = set(SubscriberHeartbeat.objects.values_list("pid", flat=True)) - dead
        os.kill(pid, signal.SIGKILL)
        dead.add(pid)
        wait_until(lambda: set(SubscriberHeartbeat.objects.values_list("pid", flat=True)) - dead)
        assert settled(port) >= 100 * kills
        publish_some(50, 50 * kills)
        wait_until(lambda: settled(port) == 100 * (kills + 1), message=lambda: str(settled(port)))  # noqa: B023
    assert not [file.name for file in shared.iterdir() if file.stem.rpartition("_")[2] in map(str, dead)]


class TestTheFolder:
    def test_it_goes_with_its_supervisor(self, run: Run, folder: Path) -> None:
        command = run("--metrics-port", "0", env={"TMPDIR": str(folder)})
        port_of(command, "metrics")
        wait_until(lambda: SubscriberHeartbeat.objects.exists())
        assert len(list(folder.glob("sqlqueue-metrics-*"))) == 1
        command.terminate()
        assert command.wait() == 0, command.output
        assert not list(folder.glob("sqlqueue-metrics-*"))

    def test_what_a_killed_one_leaves_is_swept_by_the_next(self, run: Run, folder: Path) -> None:
        env = {"TMPDIR": str(folder)}
        killed, lives = run("--metrics-port", "0", env=env), run("--metrics-port", "0", env=env)
        for command in (killed, lives):
            port_of(command, "metrics")
        before = set(folder.glob("sqlqueue-metrics-*"))
        assert len(before) == 2
        killed.kill_all()
        for shared in before:
            os.utime(shared, (0, 0))
        port_of(run("--metrics-port", "0", env=env), "metrics")
        after = set(folder.glob("sqlqueue-metrics-*"))
        assert (len(after), len(after & before)) == (2, 1), "the dead one's is gone, the living one's is not"
        assert ask(port_of(lives, "metrics"), "/metrics").status == 200


def test_the_port_is_free_again_when_code_changes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "reloaded_settings.py").write_text(RELOADED)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {"DJANGO_SETTINGS_MODULE": "reloaded_settings", "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = run("--metrics-port", str(port), env=env)

    def served_by() -> set[int]:
        answers = ask(port, "/metrics").status == 200
        return set(SubscriberHeartbeat.objects.alive().values_list("pid", flat=True)) if answers else set()

    before = wait_until(served_by)
    publish("flights", 1)
    wait_until(lambda: settled(port) == 2)
    os.utime(tmp_path / "reloaded_settings.py")
    wait_until(lambda: served_by() - before, message=lambda: command.output)
    wait_until(lambda: served_by().isdisjoint(before), message=lambda: command.output)
    publish("flights", 2)
    wait_until(lambda: settled(port) == 2, message=lambda: command.output)
    assert "cannot be opened" not in command.output
    assert command.returncode is None


class TestWhatIsRefused:
    def test_a_port_in_use(self, run: Run) -> None:
        with socket.socket() as held:
            held.bind(("127.0.0.1", 0))
            held.listen()
            port = str(held.getsockname()[1])
            command = run("--metrics-port", port)
            assert command.wait() == 1
        assert f"the metrics port {port} on 127.0.0.1 cannot be opened: it is in use" in command.output

    def test_one_port_for_two_purposes(self, run: Run) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        command = run("--metrics-port", port, "--health-port", port, "--check")
        assert command.wait() == 1
        assert "--health-port and --metrics-port must be different" in command.output

    def test_metrics_without_prometheus_client(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['prometheus_client'] = None\n")
        env = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
        command = run("--metrics-port", "0", env=env)
        assert command.wait() == 1
        assert "pip install sqlqueue[prometheus]" in command.output
        publish("flights", 1)
        command = run("--drain", env=env)
        assert command.wait() == 0, command.output
        assert Effect.objects.count() == 2
