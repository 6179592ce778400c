"""The deployment examples are what systemd, Compose and Kubernetes accept, and agree with each other."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from django.core.management import load_command_class

from sqlqueue.core.settings import QueueOptions
from tests.documents import ROOT

pytestmark = pytest.mark.once

EXAMPLES = ROOT / "docs" / "deploy"
DOCUMENT = ROOT / "docs" / "operations" / "deployment.md"
UNITS = sorted((EXAMPLES / "systemd").iterdir())
MANIFESTS = sorted((EXAMPLES / "kubernetes").iterdir())
COMPOSE = EXAMPLES / "compose" / "compose.yaml"
LAST_SETTLES = 30  # seconds that a consumer is given beyond SHUTDOWN_TIMEOUT
INTERPRETER, PROJECT = "/srv/mysite/.venv/bin/python", "/srv/mysite"
HOW_TO_GET_SYSTEMD = "systemd-analyze is not on this machine: apt-get install systemd, or make system-systemd"
EXPOSED = 20  # of 100, as systemd-analyze says it: below that a unit is called OK


def analyze(*words: object) -> tuple[int, str]:
    """Return systemd-analyze's exit status, and what it has said."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip(HOW_TO_GET_SYSTEMD)
    command = ["systemd-analyze", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def on_this_machine(folder: Path) -> list[Path]:
    """Write the units with paths that are here: that the interpreter can be run is looked at, too."""
    copies = []
    for unit in UNITS:
        copy = folder / unit.name
        text = unit.read_text().replace(INTERPRETER, sys.executable).replace(PROJECT, str(folder))
        copy.write_text(text)
        copies.append(copy)
    return copies


def verify(units: list[Path]) -> str:
    """Return what systemd has against these units; what it has against others of the machine is theirs."""
    status, said = analyze("verify", *units)
    names = {unit.name for unit in units}
    told = [line for line in said.splitlines() if any(name in line for name in names)]
    return "\n".join(told) or (said if status else "")


def directive(unit: Path, name: str) -> str:
    (value,) = re.findall(rf"^{name}=(.*)$", unit.read_text(), re.MULTILINE)
    return value


class TestSystemd:
    def test_the_units_are_valid(self, tmp_path: Path) -> None:
        assert verify(on_this_machine(tmp_path)) == ""

    @pytest.mark.parametrize(
        ("right", "wrong"),
        [
            ("KillMode=mixed", "KilMode=mixed"),
            ("TimeoutStopSec=60", "TimeoutStopSec=soon"),
            ("Requires=sqlqueue-migrate.service", "Requires=sqlqueue-migration.service"),
            ("runconsumers", "\nExecStart=no/path"),
        ],
    )
    def test_a_mistake_in_one_is_seen(self, tmp_path: Path, right: str, wrong: str) -> None:
        units = on_this_machine(tmp_path)
        (unit,) = (unit for unit in units if unit.name == "sqlqueue-consumers.service")
        assert right in unit.read_text()
        unit.write_text(unit.read_text().replace(right, wrong))
        assert verify(units) != ""

    @pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
    def test_they_may_do_little(self, unit: Path) -> None:
        status, said = analyze("security", "--offline=true", f"--threshold={EXPOSED}", unit)
        assert status == 0, said

    def test_consumers_have_the_time_they_need_to_stop(self) -> None:
        unit = EXAMPLES / "systemd" / "sqlqueue-consumers.service"
        assert directive(unit, "KillSignal") == "SIGTERM"
        assert directive(unit, "KillMode") == "mixed"
        assert int(directive(unit, "TimeoutStopSec")) == QueueOptions.SHUTDOWN_TIMEOUT + LAST_SETTLES


def check_compose(file: Path) -> subprocess.CompletedProcess[str]:
    """Hold a file against the Compose specification's schema, as it is in the package check-jsonschema."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE.read_text())


class TestCompose:
    def test_the_file_is_valid(self) -> None:
        done = check_compose(COMPOSE)
        assert done.returncode == 0, done.stdout + done.stderr

    def test_a_mistake_in_it_is_seen(self, tmp_path: Path) -> None:
        wrong = tmp_path / "compose.yaml"
        wrong.write_text(COMPOSE.read_text().replace("stop_grace_period", "stop_grace_time"))
        done = check_compose(wrong)
        assert done.returncode == 1
        assert "stop_grace_time" in done.stdout + done.stderr

    def test_consumers_have_the_time_they_need_to_stop(self) -> None:
        consumers = compose()["services"]["consumers"]
        assert consumers["stop_grace_period"] == f"{QueueOptions.SHUTDOWN_TIMEOUT + LAST_SETTLES:g}s"
        assert consumers["stop_signal"] == "SIGTERM"

    def test_it_is_migrated_once_before_anything_runs(self) -> None:
        services = compose()["services"]
        assert services["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}
        for name in ("web", "consumers"):
            assert services[name]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}

    def test_the_healthcheck_is_a_program_that_asks_the_health_port(self) -> None:
        consumers = compose()["services"]["consumers"]
        *words, program = consumers["healthcheck"]["test"]
        assert words == ["CMD", "python", "-c"]
        compile(program, "healthcheck", "exec")
        assert f"http://127.0.0.1:{port(consumers['command'], 'health')}/health/live" in program


def documents() -> Iterator[dict[str, Any]]:
    for file in MANIFESTS:
        yield from yaml.safe_load_all(file.read_text())


def manifest(kind: str) -> dict[str, Any]:
    (found,) = (one for one in documents() if one["kind"] == kind)
    return found


def pod(kind: str) -> dict[str, Any]:
    return manifest(kind)["spec"]["template"]["spec"]


class TestKubernetes:
    @pytest.mark.parametrize("kind", ["Deployment", "Job", "PodDisruptionBudget"])
    @pytest.mark.parametrize("version", ["1.28", "1.31"])
    def test_the_manifests_are_valid(self, kind: str, version: str) -> None:
        kubernetes_validate.validate(manifest(kind), version, strict=True)

    @pytest.mark.parametrize(
        ("path", "name"), [(("spec",), "replica"), (("spec", "template", "spec"), "terminationGracePeriod")]
    )
    def test_a_mistake_in_one_is_seen(self, path: tuple[str, ...], name: str) -> None:
        wrong = manifest("Deployment")
        inner = wrong
        for word in path:
            inner = inner[word]
        inner[name] = 1
        with pytest.raises(kubernetes_validate.ValidationError, match=name):
            kubernetes_validate.validate(wrong, "1.31", strict=True)

    def test_consumers_have_the_time_they_need_to_stop(self) -> None:
        assert pod("Deployment")["terminationGracePeriodSeconds"] == QueueOptions.SHUTDOWN_TIMEOUT + LAST_SETTLES

    def test_the_probes_ask_the_health_port(self) -> None:
        (container,) = pod("Deployment")["containers"]
        ports = {named["name"]: named["containerPort"] for named in container["ports"]}
        assert ports == {name: port(container["command"], name) for name in ("health", "metrics")}
        asked = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
        assert asked == {
            "startup": {"path": "/health/live", "port": "health"},
            "liveness": {"path": "/health/live", "port": "health"},
            "readiness": {"path": "/health/ready", "port": "health"},
        }
        annotations = manifest("Deployment")["spec"]["template"]["metadata"]["annotations"]
        assert annotations["prometheus.io/port"] == str(ports["metrics"])

    def test_the_selectors_find_the_consumers_and_not_the_job(self) -> None:
        labels = manifest("Deployment")["spec"]["template"]["metadata"]["labels"]
        for kind in ("Deployment", "PodDisruptionBudget"):
            assert manifest(kind)["spec"]["selector"]["matchLabels"] == labels
        assert manifest("Job")["spec"]["template"]["metadata"]["labels"] != labels

    @pytest.mark.parametrize("kind", ["Deployment", "Job"])
    def test_they_may_do_little(self, kind: str) -> None:
        (container,) = pod(kind)["containers"]
        assert pod(kind)["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def commands() -> dict[str, list[str]]:
    """Every manage.py command in the examples: its words after `manage.py`."""
    given = {
        **{unit.name: shlex.split(directive(unit, "ExecStart")) for unit in UNITS},
        **{name: service.get("command", []) for name, service in compose()["services"].items()},
        **{kind: pod(kind)["containers"][0]["command"] for kind in ("Deployment", "Job")},
    }
    return {name: words[words.index("manage.py") + 1 :] for name, words in given.items() if "manage.py" in words}


def port(command: list[str], name: str) -> int:
    (value,) = (word.partition("=")[2] for word in command if word.startswith(f"--{name}-port="))
    return int(value)


APPS = {"runconsumers": "sqlqueue", "migrate": "django.core"}


@pytest.mark.parametrize("name", sorted(commands()))
def test_the_commands_know_their_options(name: str) -> None:
    command, *words = commands()[name]
    parser = load_command_class(APPS[command], command).create_parser("manage.py", command)
    parser.parse_args(words)


def test_consumers_are_started_alike_everywhere() -> None:
    """But for the addresses that they listen on."""
    started = [words for words in commands().values() if words[0] == "runconsumers"]
    assert len(started) == 3
    assert len({" ".join(word for word in words if "-address=" not in word) for words in started}) == 1


def test_every_example_is_in_the_document() -> None:
    told = DOCUMENT.read_text()
    missing = [file.name for file in EXAMPLES.rglob("*") if file.is_file() and f"{file.name})" not in told]
    assert not missing
