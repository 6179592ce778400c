"""Measure sqlqueue beside its peers on private servers: `make benchmark-peers`.

Rounds are interleaved: each takes all figures of every peer once, in another order. The run stops beginning rounds when
the next one would not end within --minutes, so that it takes about that long at most.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

from rich.console import Console
from rich.table import Table

from tests.benchmarks.peers.adapters import ADAPTERS
from tests.benchmarks.peers.kills import RETURNS, killed
from tests.benchmarks.peers.measuring import MeasurementError, Peer
from tests.benchmarks.peers.producer import ProducerError
from tests.benchmarks.peers.report import compact, machine, publish, sentences, tables
from tests.benchmarks.peers.servers import Servers
from tests.processes import ROOT

DEFAULT = [name for name in ADAPTERS if name != "sqlqueue-sqlite"]
PARTS = ("rounds", "latency", "kills")
WHOLE = ("rounds", "kills")  # a round has the latencies, too
FAILURES = (MeasurementError, ProducerError, OSError)
KILLED_AT_A_TIME = 6  # what is killed waits most of the time
FOR_KILLS = 150.0  # seconds


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--peers", nargs="+", choices=ADAPTERS, default=DEFAULT, metavar="NAME", help=", ".join(ADAPTERS)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--messages", type=int, default=20_000, help="at most, of one measurement")
    parser.add_argument("--seconds", type=float, default=0.6, help="how long a measurement takes, about")
    parser.add_argument("--minutes", type=float, default=12, help="how long the run takes, at most about")
    parser.add_argument(
        "--only", choices=PARTS, action="append", help="repeatable (default: rounds, with all figures, and kills)"
    )
    parser.add_argument("--json", type=Path, help="write all figures there, with each sample")
    parser.add_argument("--publish", type=Path, help="the folder of documentation that gets figures and charts")
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers and workers are ended
    run = measure(
        arguments.peers,
        arguments.rounds,
        arguments.messages,
        arguments.seconds,
        arguments.minutes,
        arguments.only or WHOLE,
    )
    show(run)
    if arguments.json:
        arguments.json.write_text(json.dumps({**compact(run), "rounds": run["rounds"]}, indent=1) + "\n")
    if arguments.publish:
        publish(run, arguments.publish)
    sys.exit(1 if not run["rounds"] and not run["kills"] else 0)


def measure(
    names: Sequence[str], rounds: int, messages: int, seconds: float, minutes: float, parts: Sequence[str]
) -> dict[str, Any]:
    """Return a run: what was measured on, and the figures of each peer's rounds and kills."""
    began = time.monotonic()
    run: dict[str, Any] = {
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "load before": os.getloadavg()[0],
        "machine": machine(),
        "peers": {},
        "rounds": {},
        "kills": {},
        "failed": {},
        "rounds done": 0,
    }
    with Servers(names) as servers:
        run["servers"] = servers.versions
        peers: dict[str, Peer] = {}
        try:
            for name in names:
                attempt(
                    run,
                    peers,
                    name,
                    lambda name=name: prepare(run, peers, name, partial(Peer, name, servers, messages, seconds)),
                )
            reserve = FOR_KILLS if "kills" in parts else 0.0
            if "rounds" in parts:
                take_rounds(run, peers, rounds, began + 60 * minutes - reserve)
            elif "latency" in parts:
                take_rounds(run, peers, rounds, began + 60 * minutes - reserve, only_latency=True)
            if "kills" in parts:
                kill_all(run, peers)
        finally:
            for peer in peers.values():
                peer.close()
    return {**run, "minutes": (time.monotonic() - began) / 60}


def prepare(run: dict[str, Any], peers: dict[str, Peer], name: str, peer: Callable[[], Peer]) -> None:
    say(f"{name}: set up")
    peers[name] = peer()
    run["peers"][name] = {key: peers[name].facts[key] for key in ("version", "setup", "transactional")}


def take_rounds(
    run: dict[str, Any], peers: dict[str, Peer], rounds: int, deadline: float, only_latency: bool = False
) -> None:
    def take(name: str) -> None:
        peer = peers[name]
        run["rounds"].setdefault(name, []).append(peer.latencies() if only_latency else peer.round())

    for name in list(peers):
        say(f"warm up: {name}")
        attempt(run, peers, name, partial(peers[name].calibrate, ["noop"] if only_latency else []))
    longest = 0.0
    for number in range(rounds):
        began = time.monotonic()
        if number and began + longest > deadline:
            say(f"No time is left for round {number + 1} of {rounds}.")
            return
        order = list(peers)
        shift = number * len(order) // rounds
        for name in order[shift:] + order[:shift]:
            say(f"round {number + 1}: {name}")
            attempt(run, peers, name, partial(take, name))
        run["rounds done"] = number + 1
        longest = max(longest, time.monotonic() - began)


def kill_all(run: dict[str, Any], peers: dict[str, Peer]) -> None:
    """Kill the workers of several peers at a time; what comes back later is waited for side by side."""
    turns = BoundedSemaphore(KILLED_AT_A_TIME)

    def kill(name: str) -> None:
        say(f"kills: {name}")
        attempt(run, peers, name, lambda: run["kills"].__setitem__(name, killed(peers[name], turns, RETURNS)))
        say(f"kills: {name} has ended")

    order = list(peers)
    with ThreadPoolExecutor(len(order) or 1) as pool:
        list(pool.map(kill, order))
    run["kills"] = {name: run["kills"][name] for name in order if name in run["kills"]}


def attempt(run: dict[str, Any], peers: dict[str, Peer], name: str, work: Any) -> None:
    """Do it, and leave a peer out from here on that fails, with what it said."""
    try:
        work()
    except FAILURES as error:
        say(f"{name} failed: {error}")
        run["failed"][name] = str(error).splitlines()[0]
        if peer := peers.pop(name, None):
            peer.close()


def show(run: dict[str, Any]) -> None:
    console = Console(width=160)
    for title, head, rows in tables(run):
        table = Table(title=title)
        for number, name in enumerate(head):
            table.add_column(name, justify="right" if number else "left")
        for row in rows:
            table.add_row(*row)
        console.print(table)
    for line in sentences(run):
        console.print(line)
    for name, why in run["failed"].items():
        console.print(f"{name} failed: {why}")
    console.print(f"{run['minutes']:.1f} minutes; load of the machine before: {run['load before']:.1f}.")


def say(what: str) -> None:
    print(f"{datetime.now(timezone.utc):%H:%M:%S} {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
