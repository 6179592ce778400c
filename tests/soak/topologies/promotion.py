"""A primary and one replica, which an operator promotes: the old primary is read once more, alone, and made anew."""

import shutil
import signal
import time
from abc import abstractmethod
from collections.abc import Callable

from tests.servers.private import PrivateServer
from tests.soak.proxy import Proxy
from tests.soak.records import Failover
from tests.soak.schedule import Kind
from tests.soak.system import descendants, signal_if_there
from tests.soak.topologies.losses import Snapshot, look
from tests.soak.topologies.topology import Aftermath, Topology, wait_for

NODES = ("a", "b")
CATCH_UP = 60.0  # seconds in which a replica has caught up
DETECTION = 1.0  # seconds until a primary that is frozen is taken for dead


class Promotion(Topology):
    """Two servers. The replica reads its primary's log through a proxy: `lag` seconds late, and no more once that is
    dead."""

    lag = 0.0
    kinds = (
        Kind("fail-over", 10, 0.0, 1.0),
        Kind("fail-over-frozen", 5, 1.0, 4.0),
        Kind("switch-over", 4),
        Kind("replica-dies", 3, 0.0, 2.0),
    )

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, Proxy] = {}
        """In front of each node, for its replica."""

    # -- what differs by the vendor -----------------------------------------------------------------------------------

    @abstractmethod
    def make(self, number: int) -> PrivateServer:
        """Return the server of this number."""

    @abstractmethod
    def follow(self, replica: str, primary: str) -> None:
        """Make a replica of a fresh copy of the primary's data, and start it; the node does not run, and is empty."""

    @abstractmethod
    def caught_up(self, replica: str, primary: str) -> bool:
        """Wait a while until the replica has all that its primary has committed before now; tell whether it has."""

    @abstractmethod
    def leave_to(self, former: str, promoted: str) -> None:
        """Let the primary take no more writes, and the replica have all it has; in the end no client is let through."""

    @abstractmethod
    def promote(self, node: str) -> None:
        """Let the replica apply what it has received, and then take writes."""

    def has_a_replica(self, primary: str, has_one: bool) -> None:
        """Do what is to be done when a primary gets its replica, or has lost it."""

    # -- the servers --------------------------------------------------------------------------------------------------

    def set_up(self) -> None:
        for number, name in enumerate(NODES, 1):
            self.nodes[name] = self.make(number)
        self.primary, replica = NODES
        self.nodes[self.primary].start()
        self.nodes[replica].start()  # for its port and its folder
        for name, node in self.nodes.items():
            self.links[name] = Proxy(node.port)
            self.links[name].start()

    def prepare(self) -> None:
        super().prepare()
        self._renew(NODES[1], NODES[0])

    def tear_down(self) -> None:
        for link in self.links.values():
            link.close()

    def _renew(self, replica: str, primary: str) -> None:
        """Make the replica of this node, whatever it was before."""
        node = self.nodes[replica]
        node.kill()
        shutil.rmtree(node.folder / "data", ignore_errors=True)
        self.links[primary].restore()
        self.follow(replica, primary)
        wait_for(lambda: self.caught_up(replica, primary), CATCH_UP, f"{replica} has caught up with {primary}")
        if self.lag:
            self.links[primary].delay(self.lag)
        self.has_a_replica(primary, True)

    # -- faults -------------------------------------------------------------------------------------------------------

    def faults(self) -> dict[str, Callable[[float], object]]:
        return {
            "fail-over": self._fail_over,
            "fail-over-frozen": self._fail_over_frozen,
            "switch-over": self._switch_over,
            "replica-dies": self._replica_dies,
        }

    def _fail_over(self, seconds: float) -> Aftermath:
        """The primary dies; after so many seconds the replica is promoted."""
        former, (promoted,) = self.primary, self.others(self.primary)
        self.nodes[former].kill()
        return self._move(former, promoted, seconds, lambda: self._look_at_former(former))

    def _fail_over_frozen(self, seconds: float) -> Aftermath:
        """The primary stands still, and another one is promoted; then it goes on, and nothing that it does counts."""
        former, (promoted,) = self.primary, self.others(self.primary)
        pid = self.nodes[former].pid
        assert pid
        pids = [pid, *descendants(pid)]
        for each in pids:
            signal_if_there(each, signal.SIGSTOP)

        def thaw() -> Snapshot:
            for each in pids:
                signal_if_there(each, signal.SIGCONT)
            time.sleep(DETECTION)  # it does what it had been asked for
            self.nodes[former].kill()
            return self._look_at_former(former)

        return self._move(former, promoted, DETECTION + seconds, thaw)

    def _switch_over(self, _seconds: float) -> Aftermath:
        """In order: the primary takes no more writes, the replica catches up and is promoted. Nothing is forgotten."""
        former, (promoted,) = self.primary, self.others(self.primary)
        self.leave_to(former, promoted)
        self.promote(promoted)
        self.primary = promoted
        self.route(promoted)
        return lambda: self._renew(former, promoted)

    def _replica_dies(self, seconds: float) -> Aftermath:
        """No client notices, but where the primary waits for it."""
        (replica,) = self.others(self.primary)
        self.nodes[replica].kill()
        time.sleep(seconds)
        self.has_a_replica(self.primary, False)
        return lambda: self._renew(replica, self.primary)

    def _move(self, former: str, promoted: str, seconds: float, look_at_former: Callable[[], Snapshot]) -> Aftermath:
        self.route(None)
        died = time.monotonic()
        self.links[former].cut()  # what was on its way is gone
        self.links[former].refuse()
        time.sleep(seconds)
        self.promote(promoted)
        with self.connected(promoted) as alias:
            found = look(alias)
        self.primary = promoted
        opened = time.monotonic()
        self.route(promoted)

        def account() -> None:
            forgotten = look_at_former().held - found.held
            self.failovers.append(Failover(died, opened, forgotten, found.pending))
            self._renew(former, promoted)

        return account

    def _look_at_former(self, former: str) -> Snapshot:
        """Start the former primary once more, alone."""
        self.nodes[former].start()
        with self.connected(former) as alias:
            return look(alias)
