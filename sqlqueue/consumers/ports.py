"""What whoever hosts consumer processes shows on its ports: whether they are well, and what they have done."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.consumers.pulse import Pulse
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.observe import answers
from sqlqueue.observe.answers import Answer
from sqlqueue.observe.window import Reply, Window

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Ports:
    """Where to show it: addresses and ports; None for nowhere."""

    health: Place | None = None
    metrics: Place | None = None


class Vitals(NamedTuple):
    """How a host's processes are: by name their pulses, how many should run and do not, and whether it stops."""

    pulses: Mapping[str, Pulse]
    missing: int
    stopping: bool


METRICS = "text/plain; version=0.0.4; charset=utf-8"


def open_windows(ports: Ports, vitals: Callable[[], Vitals], metrics: Callable[[], bytes]) -> list[Window]:
    """Open what is asked for. Raises ConfigurationError for a port that cannot be had."""
    windows: list[Window] = []
    if ports.health is not None:
        windows.append(Window("health", *ports.health, lambda path, header: _respond(vitals(), path, header)))
    if ports.metrics is not None:
        try:
            windows.append(Window("metrics", *ports.metrics, lambda path, _: _expose(path, metrics)))
        except ConfigurationError:
            close_windows(windows)
            raise
    return windows


def close_windows(windows: list[Window]) -> None:
    """Free the ports."""
    for window in windows:
        window.close()


def own_metrics() -> bytes:
    """Return what this process has counted, and how everything stands."""
    from prometheus_client import generate_latest  # an extra

    return generate_latest()


def _expose(path: str, metrics: Callable[[], bytes]) -> Reply | None:
    return Reply(200, METRICS, metrics()) if path == "/metrics" else None


def _respond(vitals: Vitals, path: str, authorization: str) -> Reply | None:
    detailed = answers.has_token(authorization)
    if path == "/health/live":
        answer = live(vitals, detailed)
    elif path == "/health/ready":
        answer = ready(vitals, detailed)
    elif path == "/health/":
        answer = answers.health(detailed)
    elif path == "/status/":
        answer = answers.status() if detailed else Answer(401, {"error": "send the token: Authorization: Bearer …"})
    else:
        return None
    return Reply(answer.status, "application/json", answers.as_json(answer.body))


def live(vitals: Vitals, detailed: bool) -> Answer:
    """Every process's loop turns. A process that has died is being replaced, and no reason to kill the host."""
    hung = any(pulse.since_turn > settings.HUNG_AFTER for pulse in vitals.pulses.values())
    body: dict[str, Any] = {"ok": not hung}
    if detailed:
        body["processes"] = [
            {"subscriber": name, "since_turn": pulse.since_turn, "since_kept": pulse.since_kept, "serves": pulse.serves}
            for name, pulse in vitals.pulses.items()
        ]
    return Answer(503 if hung else 200, body)


def ready(vitals: Vitals, detailed: bool) -> Answer:
    """All processes serve, keep their leases, and the database answers."""
    problem = _unready(vitals)
    return answers.not_ready(problem, detailed) if problem else answers.ready(detailed)


def _unready(vitals: Vitals) -> str:
    if vitals.stopping:
        return "it is stopping"
    if vitals.missing:
        return f"{vitals.missing} processes are to be started"
    for name, pulse in vitals.pulses.items():
        if not pulse.serves:
            return f"{name} does not serve yet, or no more"
        kept = pulse.since_kept
        if kept is None or kept > settings.LEASE_DURATION:
            return f"{name} does not keep its leases"
    return ""
