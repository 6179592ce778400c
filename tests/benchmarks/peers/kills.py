"""What a peer loses, and does twice, when its worker is killed (`kill -9`) ten times while it works."""

import random
import time
from contextlib import AbstractContextManager
from typing import Any

from tests.benchmarks.peers.adapter import SOON
from tests.benchmarks.peers.handling import count_notes, read_notes
from tests.benchmarks.peers.measuring import Peer
from tests.benchmarks.peers.workers import Worker

KILLS = 10
SLICE = 30  # messages handled from one kill to the next
PATIENCE = 3.0  # seconds without a message until the worker is killed all the same
STARTS = 10.0 + SOON  # seconds for the first message after a start: it may wait for what the one before it held
RETURNS = 50.0  # seconds without a message, after the last kill, until what is missing counts as lost


def killed(peer: Peer, turn: AbstractContextManager[Any], returns: float = RETURNS) -> dict[str, Any]:
    """Kill the peer's worker ten times while it handles messages of 5 ms, then let it finish; say what came of them.

    turn: held as long as there are kills."""
    count = 2 * KILLS * SLICE  # more are handled than are counted, until the kill comes
    at_work, pause, before = 0, random.Random(peer.name), count_notes(peer.notes)
    first = peer.send("many", "sleep", count=count)["first"]
    with turn:
        worker = peer.start(PEERS_KILLED="yes")
        try:
            for _ in range(KILLS):
                at_work += handled_more(peer, SLICE, STARTS)
                time.sleep(pause.uniform(0, 0.02))
                worker.kill()
                worker = peer.start(PEERS_KILLED="yes")
        except BaseException:
            worker.end()
            raise
    try:
        began = time.monotonic()
        finish(peer, worker, range(first, first + count), before, returns)
        numbers = [note.number for note in read_notes(peer.notes, before)]
        took = (max(note.handled for note in read_notes(peer.notes, before)) / 1e9) - began if numbers else 0.0
    finally:
        worker.end()
    times = [numbers.count(number) for number in range(first, first + count)]
    return {
        "messages": count,
        "kills at work": at_work,
        "lost": times.count(0),
        "done twice": sum(1 for one in times if one > 1),
        "finished after": max(0.0, took),
    }


def handled_more(peer: Peer, messages: int, patience: float) -> bool:
    """Wait until so many more messages were handled; return False if for a while none was."""
    start = seen = count_notes(peer.notes)
    since = time.monotonic()
    while (found := count_notes(peer.notes)) < start + messages:
        if found > seen:
            seen, since, patience = found, time.monotonic(), PATIENCE
        if time.monotonic() > since + patience:
            return found > start
        time.sleep(0.002)
    return True


def finish(peer: Peer, worker: Worker, numbers: range, before: int, returns: float) -> None:
    """Wait until all messages were handled, or none for so many seconds; four times as long at most."""
    seen, since = -1, time.monotonic()
    latest = since + 4 * returns
    while time.monotonic() < min(since + returns, latest) and worker.runs:
        found = count_notes(peer.notes)
        if found > seen:
            seen, since = found, time.monotonic()
            if {note.number for note in read_notes(peer.notes, before)}.issuperset(numbers):
                return
        time.sleep(0.05)
