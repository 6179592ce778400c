"""`runconsumers --health-port`: whether the loops run, whether work would be taken, and which requests get details."""

import os
import signal
import socket
from collections.abc import Callable, Iterator

import pytest

from sqlqueue import publish
from sqlqueue.models import SubscriberHeartbeat
from tests.app.models import Effect
from tests.asking import ask, port_of
from tests.processes import ManageCommand, wait_until
from tests.servers.private import PrivateServer

pytestmark = pytest.mark.once

TOKEN = "a-token-of-24-characters"
LIVE, READY = "/health/live", "/health/ready"

Run = Callable[..., ManageCommand]


@pytest.fixture
def used_port() -> Iterator[int]:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        held.listen()
        yield held.getsockname()[1]


def status(port: int, path: str) -> int:
    return ask(port, path).status


def wait_for(port: int, path: str, wanted: int) -> None:
    wait_until(lambda: status(port, path) == wanted, message=lambda: f"{path}: {ask(port, path, TOKEN)}")


def processes(port: int) -> dict[str, dict]:
    return {each["subscriber"]: each for each in ask(port, LIVE, TOKEN).body["processes"]}


@pytest.mark.parametrize("count", ["0", "2"])
def test_it_is_live_at_once_and_ready_when_all_processes_serve(run: Run, count: str) -> None:
    command = run("--processes", count, "--health-port", "0", STATUS_TOKEN=TOKEN)
    port = port_of(command, "health")
    assert status(port, LIVE) == 200
    wait_for(port, READY, 200)
    assert set(processes(port)) == set(SubscriberHeartbeat.objects.values_list("subscriber", flat=True))
    assert all(each["serves"] and each["since_iteration"] < 30 for each in processes(port).values())
    command.terminate()
    assert command.wait() == 0, command.output
    assert status(port, LIVE) == 0


def test_strangers_learn_nothing_but_ok(run: Run) -> None:
    publish("flights", 1)
    command = run("--group", "delays", "--health-port", "0", STATUS_TOKEN=TOKEN, STATS_INTERVAL=0)
    port = port_of(command, "health")
    wait_for(port, READY, 200)
    for token in ("", TOKEN + "x", TOKEN[:-1]):
        for path in (LIVE, READY, "/health/"):
            answer = ask(port, path, token)
            assert (answer.status, answer.body) == (200, {"ok": True})
        answer = ask(port, "/status/", token)
        assert (answer.status, set(answer.body)) == (401, {"error"})
    wait_until(lambda: ("flights", "delays") in groups(port))
    assert TOKEN not in command.output


def groups(port: int) -> set[tuple[str, str]]:
    told = [ask(port, path, TOKEN).body["groups"] for path in ("/health/", "/status/")]
    return {(each["topic"], each["group"]) for groups in told for each in groups}


def test_a_limit_that_is_passed_is_told(run: Run) -> None:
    command = run(
        "--group", "aircraft", "--topic", "stuck", "--health-port", "0", HEALTH={"max_lag": 1}, STATS_INTERVAL=0
    )
    port = port_of(command, "health")
    wait_for(port, "/health/", 200)
    for number in range(3):
        publish("stuck", number)
    wait_for(port, "/health/", 503)
    assert ask(port, "/health/").body == {"ok": False}


def test_it_only_reads_and_knows_no_other_paths(run: Run) -> None:
    port = port_of(run("--processes", "0", "--health-port", "0"), "health")
    assert [ask(port, path).status for path in ("/", "/health", "/admin/", "/metrics", "/../etc/passwd")] == [404] * 5
    assert {ask(port, LIVE, method=method).status for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS")} == {501}
    head = ask(port, LIVE, method="HEAD")
    assert (head.status, head.text, head.headers["Cache-Control"]) == (200, "", "no-store")


class TestLive:
    def test_a_loop_that_hangs_is_told_before_its_leases_end(self, run: Run) -> None:
        options = {"HUNG_AFTER": 3, "HEARTBEAT_INTERVAL": 0.5, "STATUS_TOKEN": TOKEN}
        port = port_of(run("--topic", "hang", "--health-port", "0", **options), "health")
        wait_for(port, READY, 200)
        assert status(port, LIVE) == 200
        publish("hang", 1)
        wait_for(port, LIVE, 503)
        (process,) = processes(port).values()
        assert process["since_iteration"] > 3
        assert process["since_renewal"] < process["since_iteration"], "its lease renewer goes on"
        assert ask(port, LIVE).body == {"ok": False}

    def test_one_of_two_processes_stands_still_until_it_is_replaced(self, run: Run) -> None:
        command = run("--processes", "2", "--health-port", "0", HUNG_AFTER=3, LEASE_DURATION=600)
        port = port_of(command, "health")
        wait_for(port, READY, 200)
        pid = SubscriberHeartbeat.objects.values_list("pid", flat=True)[0]
        os.kill(pid, signal.SIGSTOP)
        wait_for(port, LIVE, 503)
        wait_for(port, LIVE, 200)
        wait_for(port, READY, 200)
        assert not SubscriberHeartbeat.objects.filter(pid=pid, exit_status=None).exists()

    def test_a_process_that_dies_is_no_reason_to_kill_its_host(self, run: Run) -> None:
        command = run("--health-port", "0", STATUS_TOKEN=TOKEN)
        port = port_of(command, "health")
        wait_for(port, READY, 200)
        (first,) = processes(port)
        os.kill(SubscriberHeartbeat.objects.values_list("pid", flat=True)[0], signal.SIGKILL)
        wait_until(lambda: set(processes(port)) - {first} and status(port, READY) == 200)
        assert first not in processes(port)
        assert status(port, LIVE) == 200


class TestReady:
    @pytest.mark.parametrize("count", ["0", "1"])
    def test_it_is_not_while_it_stops(self, run: Run, count: str) -> None:
        publish("stuck", 1)
        options = {"SHUTDOWN_TIMEOUT": 600, "STATUS_TOKEN": TOKEN}
        command = run("--topic", "stuck", "--processes", count, "--health-port", "0", **options)
        port = port_of(command, "health")
        wait_for(port, READY, 200)
        wait_until(lambda: Effect.objects.filter(name="began").exists())
        command.terminate()
        wait_for(port, READY, 503)
        assert "stop" in ask(port, READY, TOKEN).body["problem"]
        assert status(port, LIVE) == 200
        assert command.returncode is None

    @pytest.mark.database("mariadb", "mysql", "postgresql")
    def test_it_is_not_while_the_database_is_away(self, run: Run, database_server: PrivateServer) -> None:
        options = {"STATUS_TOKEN": TOKEN, "STATS_INTERVAL": 0.1, "HUNG_AFTER": 600}
        port = port_of(run("--health-port", "0", **options), "health")
        wait_for(port, READY, 200)
        database_server.stop()
        wait_for(port, READY, 503)
        assert status(port, LIVE) == 200
        database_server.start()
        wait_for(port, READY, 200)


class TestAPortThatCannotBeHad:
    @pytest.mark.parametrize("count", ["0", "2"])
    def test_one_in_use_is_refused(self, run: Run, count: str, used_port: int) -> None:
        command = run("--processes", count, "--health-port", str(used_port))
        assert command.wait() == 1
        assert f"the health port {used_port} on 127.0.0.1 cannot be opened: it is in use" in command.output
        assert "Traceback" not in command.output
        assert not SubscriberHeartbeat.objects.exists()

    @pytest.mark.parametrize(
        "words", [("--health-port", "70000"), ("--health-port=0", "--health-address=no.such.host.invalid")]
    )
    def test_so_is_one_that_cannot_be(self, run: Run, words: tuple[str, ...]) -> None:
        command = run(*words)
        assert command.wait() == 1
        assert "cannot be opened" in command.output
        assert "Traceback" not in command.output
