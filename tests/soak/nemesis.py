"""The nemesis: does the faults of the schedule, and writes down when each began and ended, and to whom it was done."""

import signal
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence

from tests.soak.alterations import Alterations
from tests.soak.databases import Database, Impossible
from tests.soak.fleet import FAKETIME, Fleet, children
from tests.soak.history import Journal
from tests.soak.records import EVERYBODY
from tests.soak.schedule import Fault
from tests.soak.system import signal_if_there
from tests.soak.workload import TOPICS


class Nemesis:
    """Does the tracks of a schedule side by side. A fault's line: its kind, its beginning, and its victims' ids."""

    def __init__(
        self,
        tracks: Sequence[Sequence[Fault]],
        fleet: Fleet,
        database: Database,
        alterations: Alterations,
        journal: Journal,
        seconds: float = float("inf"),
    ) -> None:
        """seconds: after so many no fault begins; those before it may have taken longer than the schedule knew."""
        self.fleet, self.journal, self._seconds = fleet, journal, seconds
        self.done: Counter[str] = Counter()
        self.impossible: dict[str, str] = {}
        self.failures: list[str] = []
        self._began = 0.0
        self._of_the_database, self._alterations = database.faults(), alterations
        self._databases = database.databases_of_faults
        self._of_alterations = alterations.faults()
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._follow, args=(track,), daemon=True) for track in tracks]
        self._altering = [
            thread for track, thread in zip(tracks, self._threads) if track and track[0].kind in self._of_alterations
        ]

    def run(self) -> None:
        """Do all faults; return when the last has ended, but for a change of partitions that takes longer than the
        run."""
        self._began = time.monotonic()
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            if thread not in self._altering:
                thread.join()
        for thread in self._altering:
            left = self._began + self._seconds - time.monotonic()
            thread.join(max(0.0, min(left, threading.TIMEOUT_MAX)))

    def finish(self) -> None:
        """Return when the last change of partitions is done, too."""
        for thread in self._altering:
            thread.join()

    def stop(self) -> None:
        """Do no more of them."""
        self._stopping.set()
        self._alterations.stop()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()

    def _follow(self, track: Sequence[Fault]) -> None:
        from django.db import connections

        for fault in track:
            if self._stopping.wait(max(0.0, self._began + fault.at - time.monotonic())):
                break
            if time.monotonic() > self._began + self._seconds:
                break
            try:
                self._do(fault)
            except Impossible as error:
                self.impossible[fault.kind] = str(error)
            except Exception:
                self.failures.append(f"{fault}: {traceback.format_exc()}")
            finally:
                connections.close_all()

    def _do(self, fault: Fault) -> None:
        began = time.monotonic()
        victims: list[int] | str = EVERYBODY
        # Written down before it is done as well: what it causes may come before it ends.
        self.journal.note("fault-begins", fault.kind, fault.at)
        aftermath: object = None
        try:
            if fault.kind in self._of_the_database:
                victims = self._databases.get(fault.kind, EVERYBODY)
                aftermath = self._of_the_database[fault.kind](fault.seconds)
            elif fault.kind in self._of_alterations:
                victims = self._of_alterations[fault.kind](fault)
            else:
                done = getattr(self, fault.kind.replace("-", "_"))(fault)
                victims = EVERYBODY if done is None else done
        finally:
            self.journal.note("fault", fault.kind, began, victims)
        if victims:
            self.done[fault.kind] += 1
        if callable(aftermath):
            aftermath()  # such as a new replica: the fault is over for all others

    # -- faults of processes; each returns its victims' ids -----------------------------------------------------------

    def kill_consumer(self, fault: Fault) -> list[int]:
        return self._signal_one(self.fleet.consumer_pids(), fault, signal.SIGKILL)

    def kill_publisher(self, fault: Fault) -> list[int]:
        return self._signal_one(self.fleet.publisher_pids(), fault, signal.SIGKILL)

    def kill_supervisor(self, fault: Fault) -> list[int]:
        pid = self.fleet.supervisor_pid()
        orphans = children(pid)
        return [*self._signal_one([pid] if pid else [], fault, signal.SIGKILL), *orphans]

    def stop_consumer(self, fault: Fault) -> list[int]:
        return self._stop_one(self.fleet.consumer_pids, fault)

    def stop_publisher(self, fault: Fault) -> list[int]:
        return self._stop_one(self.fleet.publisher_pids, fault)

    def join(self, fault: Fault) -> list[int]:
        self.fleet.join()
        return [0]

    def leave(self, fault: Fault) -> list[int]:
        return self.fleet.leave(fault.pick)

    def shift_clock(self, fault: Fault) -> list[int]:
        if not FAKETIME:
            raise Impossible("libfaketime is not installed (Debian: apt-get install faketime)")
        return self.fleet.shift_clock(fault.pick)

    def pause_topic(self, fault: Fault) -> None:
        from sqlqueue.models import Topic

        one = Topic.objects.filter(name=TOPICS[int(fault.pick * len(TOPICS))])
        one.update(paused=True)
        try:
            self._stopping.wait(fault.seconds)
        finally:
            insistently(lambda: one.update(paused=False))

    def _signal_one(self, pids: list[int], fault: Fault, number: signal.Signals) -> list[int]:
        if not pids:
            return []
        pid = pids[int(fault.pick * len(pids))]
        if number == signal.SIGKILL:
            self.fleet.killed.add(pid)
        return [pid] if signal_if_there(pid, number) else []

    def _stop_one(self, candidates: Callable[[], list[int]], fault: Fault) -> list[int]:
        stopped = self._signal_one(candidates(), fault, signal.SIGSTOP)
        time.sleep(fault.seconds)
        for pid in stopped:
            signal_if_there(pid, signal.SIGCONT)
        return stopped


def insistently(operation: Callable[[], object], timeout: float = 60.0) -> None:
    """Do what has to be done although the database may be away at the moment."""
    from django.db import Error, connections

    deadline = time.monotonic() + timeout
    while True:
        try:
            operation()
            return
        except Error:
            connections.close_all()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
