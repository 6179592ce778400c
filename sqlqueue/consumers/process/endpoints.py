"""The endpoints of `runconsumers`: health, status and metrics of its consumer processes, on ports of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlqueue.conf import settings
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.monitoring import responses
from sqlqueue.monitoring.http_server import HttpServer, Response
from sqlqueue.monitoring.responses import HealthResponse

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Endpoints:
    """The addresses (host, port) of the endpoints; None for one that is not opened."""

    health: Address | None = None
    metrics: Address | None = None


class ProcessHealth(NamedTuple):
    """The health of one supervisor's processes: the liveness of each by its name, how many are missing, and whether it
    is stopping."""

    processes: Mapping[str, Liveness]
    missing: int
    stopping: bool


METRICS = "text/plain; version=0.0.4; charset=utf-8"


def open_servers(endpoints: Endpoints, health: Callable[[], ProcessHealth], metrics: Callable[[], bytes]) -> ExitStack:
    """Open the given endpoints; close() frees their ports. Raises ConfigurationError for a port that cannot be
    opened."""
    with ExitStack() as opened:
        if endpoints.health is not None:
            server = HttpServer("health", *endpoints.health, lambda path, header: _respond(health(), path, header))
            opened.callback(server.close)
        if endpoints.metrics is not None:
            server = HttpServer("metrics", *endpoints.metrics, lambda path, _: _expose(path, metrics))
            opened.callback(server.close)
        return opened.pop_all()


def own_metrics() -> bytes:
    """Return the metrics of this process, and the stats of the queue, as Prometheus text."""
    from prometheus_client import generate_latest  # an extra

    return generate_latest()


def _expose(path: str, metrics: Callable[[], bytes]) -> Response | None:
    return Response(200, METRICS, metrics()) if path == "/metrics" else None


def _respond(health: ProcessHealth, path: str, authorization: str) -> Response | None:
    answers: dict[str, Callable[[bool], HealthResponse]] = {
        "/health/live": lambda detailed: live(health, detailed),
        "/health/ready": lambda detailed: ready(health, detailed),
        "/health/": responses.health,
        "/status/": _status,
    }
    if path not in answers:
        return None
    answer = answers[path](responses.has_token(authorization))
    return Response(answer.status, "application/json", responses.as_json(answer.body))


def _status(detailed: bool) -> HealthResponse:
    return responses.status() if detailed else HealthResponse(401, {"error": "send the token: Authorization: Bearer …"})


def live(health: ProcessHealth, detailed: bool) -> HealthResponse:
    """Return 200 while the loop of every process runs. A process that has died is being replaced, which is no reason to
    restart the supervisor."""
    hung = any(liveness.since_iteration > settings.HUNG_AFTER for liveness in health.processes.values())
    body: dict[str, Any] = {"ok": not hung}
    if detailed:
        body["processes"] = [
            {
                "subscriber": name,
                "since_iteration": liveness.since_iteration,
                "since_renewal": liveness.since_renewal,
                "serves": liveness.serves,
            }
            for name, liveness in health.processes.items()
        ]
    return HealthResponse(503 if hung else 200, body)


def ready(health: ProcessHealth, detailed: bool) -> HealthResponse:
    """Return 200 while all processes serve and renew their leases, and the database answers."""
    problem = _unready(health)
    return responses.not_ready(problem, detailed) if problem else responses.ready(detailed)


def _unready(health: ProcessHealth) -> str:
    if health.stopping:
        return "it is stopping"
    if health.missing:
        return f"{health.missing} processes are to be started"
    for name, liveness in health.processes.items():
        if not liveness.serves:
            return f"{name} does not serve yet, or no more"
        since_renewal = liveness.since_renewal
        if since_renewal is None or since_renewal > settings.LEASE_DURATION:
            return f"{name} does not renew its leases"
    return ""
