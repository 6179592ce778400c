"""MariaDB with Galera: three nodes, of which clients write to one."""

import re
import subprocess
from typing import ClassVar

from tests.servers.galera import PROVIDER
from tests.servers.mariadb import PrivateMariaDB, run_as
from tests.servers.private import PrivateServer
from tests.soak.databases import MYSQL
from tests.soak.topologies.cluster import ANSWER_TIMEOUT, PORT, SERVES_AGAIN, Cluster
from tests.soak.topologies.network import Network
from tests.soak.topologies.topology import wait_for

SYNCED = "4"
ACCOUNT = "mysql"  # Debian's package makes it
POSITION = re.compile(r"Recovered position: (\S+)")
STATUS = (
    "SHOW GLOBAL STATUS WHERE variable_name IN"
    " ('wsrep_ready', 'wsrep_cluster_status', 'wsrep_local_state', 'wsrep_cluster_size')"
)


class Node(PrivateMariaDB):
    """A node in its namespace. first: it begins a cluster at its next start; donors: of what it has missed."""

    def __init__(self, network: Network, node: str) -> None:
        super().__init__()
        self._network, self._node = network, node
        self.first = False
        self.donors: list[str] = []
        self._position = ""

    def install(self) -> None:
        """Make a data directory. Nodes copy theirs by rsync, which as root would give everything away."""
        super().install()
        self.run("chown", "--recursive", ACCOUNT, str(self.folder))

    def start(self) -> None:
        """Start it where its data is, so that it gets from the others only what it has missed."""
        if self._folder and not self.pid:
            self._position = self._recover()
        super().start()

    def command(self) -> list[str]:
        """Return mariadbd and its options, inside of the namespace."""
        address = self._network.addresses[self._node]
        others = ",".join(each for node, each in self._network.addresses.items() if node != self._node)
        return [
            *("ip", "netns", "exec", self._network.namespace(self._node)),
            *self._alone(),
            f"--port={PORT}",
            "--innodb-buffer-pool-size=64M",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-cluster-address=gcomm://{'' if self.first else others}",
            f"--wsrep-node-name={self._node}",
            f"--wsrep-node-address={address}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://{address}:4567;gcache.size=64M",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-donor={','.join(self.donors)},",  # one that does not serve; if there is none, any
            "--wsrep-auto-increment-control=OFF",  # sqlqueue wants an increment of 1
            *([f"--wsrep-start-position={self._position}"] if self._position and not self.first else []),
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def _alone(self) -> list[str]:
        """Return mariadbd and its options without a cluster's. Of two accounts the first would win."""
        return [word for word in PrivateMariaDB.command(self) if word not in run_as()] + [f"--user={ACCOUNT}"]

    def _recover(self) -> str:
        """Return the position of what is on its disk; "" if that says none."""
        words = [
            *PrivateMariaDB.command(self),
            f"--user={ACCOUNT}",
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-recover",
        ]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        found = POSITION.search(done.stderr + done.stdout)
        return found[1] if found and not found[1].endswith(":-1") else ""


class Galera(Cluster):
    """The node that serves is one that is synced with a majority."""

    name: ClassVar[str] = "galera"
    database = "mariadb"
    vendor = MYSQL
    no_database = ""

    def make(self, node: str) -> PrivateServer:
        return Node(self.network, node)

    def node_settings(self, node: str) -> dict[str, object]:
        server = self.nodes[node]
        assert isinstance(server, Node)
        limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), ANSWER_TIMEOUT)
        return {"HOST": str(server.socket), "PORT": "", "USER": server.superuser, "OPTIONS": limits}

    def begin(self, node: str) -> None:
        server = self.nodes[node]
        assert isinstance(server, Node)
        server.first = True
        server.start()
        server.first = False
        wait_for(lambda: self.is_member(node), SERVES_AGAIN, f"{node} has begun the cluster")

    def come(self, node: str) -> None:
        server = self.nodes[node]
        assert isinstance(server, Node)
        server.donors = [each for each in self.others(node) if each != self.primary]
        server.start()
        wait_for(lambda: self.is_member(node), SERVES_AGAIN, f"{node} is a member")

    def serves(self, node: str) -> bool:
        return self.is_member(node)

    def members(self, node: str) -> int:
        return int(str(dict(self.ask(node, STATUS))["wsrep_cluster_size"]))

    def is_member(self, node: str) -> bool:
        status = dict(self.ask(node, STATUS))
        return list(map(status.get, ("wsrep_ready", "wsrep_cluster_status", "wsrep_local_state"))) == [
            "ON",
            "Primary",
            SYNCED,
        ]
