"""The examples' own commands are run, and their own probes ask them."""

import re
import subprocess
import sys
from http.client import HTTPConnection

import pytest

from sqlqueue import publish
from tests.app.models import Effect
from tests.deployment.test_examples import commands, compose, manifest, pod
from tests.processes import ManageCommand, ManageCommands, wait_until

pytestmark = pytest.mark.once

SETTINGS = {"DJANGO_SETTINGS_MODULE": "tests.management.settings"}


def start(manage: ManageCommands, name: str) -> tuple[ManageCommand, dict[str, int]]:
    """Start an example's command on ports that are free; return it, and the ports by their purpose."""
    words = [re.sub(r"(?<=-port=)\d+", "0", word) for word in commands()[name]]
    command = manage(*words, env=SETTINGS)
    ports = {
        purpose: int(command.wait_for_line(rf"event=listening purpose={purpose} .*port=(\d+)")[1])
        for purpose in ("health", "metrics")
    }
    return command, ports


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("name", ["Deployment", "sqlqueue-consumers.service"])
def test_what_is_started_answers_the_probes_and_stops_by_sigterm(manage: ManageCommands, name: str) -> None:
    command, ports = start(manage, name)
    (container,) = pod("Deployment")["containers"]
    for probe in ("startup", "liveness", "readiness"):
        asked = container[f"{probe}Probe"]["httpGet"]
        wait_until(lambda: ask(ports[asked["port"]], asked["path"])[0] == 200, message=lambda: command.output)  # noqa: B023
    scraped = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]["prometheus.io/path"]
    status, metrics = ask(ports["metrics"], scraped)
    assert status == 200
    assert 'sqlqueue_database_up{database=""} 1.0' in metrics
    publish("flights", 1)
    wait_until(lambda: Effect.objects.filter(name="delays").exists(), message=lambda: command.output)
    command.terminate()
    assert command.wait() == 0, command.output
    assert command.output.count("event=subscriber_stopped") == 2


def test_the_compose_healthcheck_tells_whether_it_lives(manage: ManageCommands) -> None:
    command, ports = start(manage, "consumers")
    *_, program = compose()["services"]["consumers"]["healthcheck"]["test"]
    here = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{ports['health']}", program)

    def status() -> int:
        return subprocess.run([sys.executable, "-c", here], capture_output=True, timeout=60, check=False).returncode

    wait_until(lambda: status() == 0, message=lambda: command.output)
    command.terminate()
    assert command.wait() == 0, command.output
    assert status() != 0
