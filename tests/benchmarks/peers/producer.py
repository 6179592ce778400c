"""Sends a peer's messages, as a web process does: `python -m tests.benchmarks.peers.producer NAME`.

Each line of standard input is an order in JSON, each line of standard output its answer. Producer is the other side.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.processes import ROOT

CHUNK = 1_000  # messages of one call in bulk
LONGEST = 120.0  # seconds for an order


class ProducerError(Exception):
    """A peer could not do what it was asked for; the message is its traceback's end."""


class Producer:
    """A process that sends the messages of one peer."""

    def __init__(self, name: str, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, name],
                cwd=ROOT,
                env={**os.environ, **environment},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )

    def __call__(self, what: str, **order: Any) -> dict[str, Any]:
        """Have it do something, and return its answer."""
        hung = threading.Timer(LONGEST, self._process.kill)
        hung.start()
        try:
            self._process.stdin.write(json.dumps({"do": what, **order}) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            hung.cancel()
        if not answer:
            raise ProducerError(f"The producer has ended:\n{self.log.read_text(errors='replace')[-1500:]}")
        found = json.loads(answer)
        if "error" in found:
            raise ProducerError(found["error"])
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def main(name: str) -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints is no answer
    import django

    django.setup()
    from tests.benchmarks.peers.adapters import adapter

    peer = None
    for line in sys.stdin:
        try:
            peer = peer or adapter(name)
            answer = carry_out(peer, json.loads(line))
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")


def carry_out(peer: Any, order: dict[str, Any]) -> dict[str, Any]:
    what = order.pop("do")
    if what == "describe":
        names = ("version", "setup", "transactional", "has_bulk", "kinds", "distribution")
        return {name: getattr(peer, name) for name in names} | {"workers": peer.workers()}
    if what == "prepare":
        peer.prepare()
        return {}
    return {"paced": paced, "many": many}.get(what, each)(peer, what, **order)


def each(peer: Any, what: str, kind: str, first: int, count: int, seconds: float = 60.0) -> dict[str, Any]:
    """Send one after the other; stop early when the seconds are over."""
    send = peer.enqueue_in_transaction if what == "in_transaction" else peer.enqueue
    began = time.perf_counter()
    sent = 0
    for number in range(first, first + count):
        send(kind, number)
        sent += 1
        if time.perf_counter() - began > seconds:
            break
    return {"count": sent, "seconds": time.perf_counter() - began}


def many(peer: Any, what: str, kind: str, first: int, count: int) -> dict[str, Any]:
    """Send in bulk where the peer can, and else one after the other."""
    if not peer.has_bulk:
        return each(peer, what, kind, first, count)
    began = time.perf_counter()
    for start in range(first, first + count, CHUNK):
        peer.enqueue_many(kind, range(start, min(start + CHUNK, first + count)))
    return {"count": count, "seconds": time.perf_counter() - began}


def paced(peer: Any, what: str, kind: str, first: int, gaps: Sequence[float]) -> dict[str, Any]:
    """Send one after each gap, in seconds; what is late is sent at once."""
    began = due = time.perf_counter()
    for number, gap in enumerate(gaps, first):
        due += gap
        if (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        peer.enqueue(kind, number)
    return {"count": len(gaps), "seconds": time.perf_counter() - began}


if __name__ == "__main__":
    main(sys.argv[1])
