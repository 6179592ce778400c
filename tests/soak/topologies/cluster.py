"""Three nodes that agree among themselves who serves: a watcher, as clusters have it, tells haproxy."""

import contextlib
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from functools import partial

from tests.servers.private import PrivateServer
from tests.soak.history import Journal
from tests.soak.schedule import Kind
from tests.soak.system import descendants, signal_if_there
from tests.soak.topologies import probe
from tests.soak.topologies.network import Network
from tests.soak.topologies.topology import Aftermath, Topology, wait_for

NODES = ("a", "b", "c")
PORT = 3306  # of each, in its own namespace
REROUTED = "rerouted"
WATCH_INTERVAL = 0.2  # seconds
ANSWER_TIMEOUT = 1  # seconds in which a node says whether it serves; one that does not say it, does not serve
SERVES_AGAIN = 120.0  # seconds in which another node serves, and the former primary is back


class Cluster(Topology):
    """Each node is in a namespace of its own. A fault ends as soon as another node serves; the harmed one comes back in
    its aftermath."""

    may_forget = False
    consequences = frozenset({REROUTED, probe.KIND})
    _probe: probe.Probe | None = None
    kinds = (
        Kind("kill-primary", 10, 0.0, 3.0),
        Kind("freeze-primary", 6, 5.0, 15.0),
        Kind("cut-off-primary", 8, 8.0, 20.0),
        Kind("kill-secondary", 3, 0.0, 3.0),
        Kind("cut-off-secondary", 4, 3.0, 15.0),
    )

    def __init__(self) -> None:
        super().__init__()
        self.network = Network(NODES)
        self._watcher = threading.Thread(target=self._watch, name="watcher", daemon=True)
        self._stopping = threading.Event()

    # -- what differs by the vendor -----------------------------------------------------------------------------------

    @abstractmethod
    def make(self, node: str) -> PrivateServer:
        """Return the server of a node, which starts inside of its namespace."""

    @abstractmethod
    def begin(self, node: str) -> None:
        """Let the first node begin the cluster."""

    @abstractmethod
    def come(self, node: str) -> None:
        """Let a node that has been away, or was never there, start and become a member; return when it is one."""

    @abstractmethod
    def serves(self, node: str) -> bool:
        """Tell whether clients are to be let through to this node, as it says itself. May raise Error."""

    @abstractmethod
    def is_member(self, node: str) -> bool:
        """Tell whether a node is a member that has all that the others have. May raise Error."""

    @abstractmethod
    def members(self, node: str) -> int:
        """Return how many members this node knows that have all. May raise Error."""

    # -- the nodes ----------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        self.network.start()
        for node in NODES:
            self.nodes[node] = self.make(node)
        self.primary = NODES[0]

    def prepare(self) -> None:
        self.begin(self.primary)
        for node in self.others(self.primary):
            self.come(node)
        super().prepare()
        self.ask(self.primary, *probe.PREPARATIONS)
        self._watcher.start()

    def begin_run(self, journal: Journal) -> None:
        super().begin_run(journal)
        self._probe = probe.Probe(journal)
        self._probe.start()

    def where(self, node: str) -> str:
        return f"127.0.0.1:{PORT} namespace {self.network.namespace(node)}"

    def close(self) -> None:
        if self._probe:
            self._probe.stop()
        self._stopping.set()
        if self._watcher.is_alive():
            self._watcher.join()
        super().close()

    def tear_down(self) -> None:
        self.network.close()

    def _watch(self) -> None:
        """Ask the primary first: as long as it serves, it stays."""
        from django.db import connections

        served = time.monotonic()
        while not self._stopping.wait(WATCH_INTERVAL):
            candidates = [self.primary, *self.others(self.primary)]
            found = next((node for node in candidates if self._says_that_it_serves(node)), None)
            if found != self._routed:
                self.route(found)
                self._routed = found
                self.note_fault(REROUTED, served)  # whatever the reason is: a donor of a node that joins is another
            if found is not None:
                self.primary, served = found, time.monotonic()
        connections.close_all()

    _routed: str | None = NODES[0]

    def _says_that_it_serves(self, node: str) -> bool:
        from django.db import Error

        with contextlib.suppress(Error):
            return self.nodes[node].pid is not None and self.serves(node)
        return False

    # -- faults -------------------------------------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[float], object]]:
        """Each harms one node of a whole cluster: with two of three away at once, it does not recover by itself."""
        harms: dict[str, Callable[[float], object]] = {
            "kill-primary": lambda seconds: self._kill(self.primary, seconds),
            "freeze-primary": self._freeze,
            "cut-off-primary": lambda seconds: self._cut_off(self.primary, seconds),
            "kill-secondary": lambda seconds: self._kill(self.others(self.primary)[0], seconds),
            "cut-off-secondary": lambda seconds: self._cut_off(self.others(self.primary)[-1], seconds),
        }
        return {kind: partial(self._once_whole, harm) for kind, harm in harms.items()}

    def _once_whole(self, harm: Callable[[float], object], seconds: float) -> object:
        for node in NODES:
            self._wait_for_member(node)
        return harm(seconds)

    def _kill(self, node: str, seconds: float) -> Aftermath:
        self.nodes[node].kill()
        self._wait_for_another(node)

        def bring_back() -> None:
            time.sleep(seconds)
            self.come(node)
            self._wait_for_member(node)

        return bring_back

    def _freeze(self, seconds: float) -> Aftermath:
        """It goes on after so many seconds, whether it has been replaced or not; then it has to find its way back."""
        node = self.primary
        pid = self.nodes[node].pid
        assert pid
        pids = [pid, *descendants(pid)]
        for each in pids:
            signal_if_there(each, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            for each in pids:
                signal_if_there(each, signal.SIGCONT)
        self._wait_for_service()
        return lambda: self._wait_for_member(node)

    def _cut_off(self, node: str, seconds: float) -> Aftermath:
        """Clients still reach it, as far as the watcher lets them through; what it accepts alone must not count."""
        self.network.cut_off(node)
        try:
            time.sleep(seconds)
        finally:
            self.network.join(node)
        self._wait_for_service()
        return lambda: self._wait_for_member(node)

    def _wait_for_another(self, node: str) -> None:
        wait_for(lambda: self._routed not in (None, node), SERVES_AGAIN, f"another node serves than {node}")

    def _wait_for_service(self) -> None:
        wait_for(lambda: self._routed is not None, SERVES_AGAIN, "a node serves")

    def _wait_for_member(self, node: str) -> None:
        """A node that gave up is started anew, as an operator, or systemd, does it."""
        deadline = time.monotonic() + SERVES_AGAIN
        while time.monotonic() < deadline:
            if self.nodes[node].pid is None:
                self.come(node)
            with contextlib.suppress(TimeoutError):
                wait_for(lambda: self._is_back(node), 5.0, f"{node} is a member")
                return
        self.nodes[node].kill()
        self.come(node)

    def _is_back(self, node: str) -> bool:
        """A node that was cut off may take itself for a member until it hears that the others have gone on without it:
        so the one that serves is asked, too."""
        known = (self.members(each) for each in (node, self.primary))
        return self.nodes[node].pid is not None and self.is_member(node) and set(known) == {len(NODES)}
