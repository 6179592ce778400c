"""MySQL with Group Replication: three nodes, of which the group elects one as its primary."""

from typing import ClassVar

from tests.servers.mysql import PrivateMySQL, greets
from tests.servers.private import PrivateServer
from tests.soak.databases import MYSQL
from tests.soak.topologies.cluster import ANSWER_TIMEOUT, NODES, PORT, SERVES_AGAIN, Cluster
from tests.soak.topologies.network import NETWORK, Network
from tests.soak.topologies.topology import wait_for

GROUP = "5a5a5a5a-0000-4000-8000-5c1a57e55e00"
GROUP_PORT = 33061
REPLICATOR = "replicator"
ACCOUNT = (
    "SET SESSION sql_log_bin = 0",
    f"CREATE USER IF NOT EXISTS {REPLICATOR}@'%' IDENTIFIED BY ''",
    f"GRANT REPLICATION SLAVE, CONNECTION_ADMIN, BACKUP_ADMIN, GROUP_REPLICATION_STREAM ON *.* TO {REPLICATOR}@'%'",
    f"CHANGE REPLICATION SOURCE TO source_user = '{REPLICATOR}' FOR CHANNEL 'group_replication_recovery'",
)
OWN = (
    "SELECT member_state, member_role, @@GLOBAL.super_read_only,"
    " (SELECT COUNT(*) FROM performance_schema.replication_group_members),"
    " (SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE member_state <> 'UNREACHABLE')"
    " FROM performance_schema.replication_group_members WHERE member_id = @@GLOBAL.server_uuid"
)
ONLINE = "SELECT member_id FROM performance_schema.replication_group_members WHERE member_state = 'ONLINE'"


class Node(PrivateMySQL):
    """A node in its namespace. Whether it is a member is another matter."""

    def __init__(self, network: Network, node: str) -> None:
        super().__init__(log_bin=True, options=options(network, node))
        self._namespace = network.namespace(node)

    def install(self) -> None:
        """Make a data directory, outside of the namespace."""
        namespace, self._namespace = self._namespace, ""
        try:
            super().install()
        finally:
            self._namespace = namespace

    def _program(self) -> list[str]:
        inside = ["ip", "netns", "exec", self._namespace] if self._namespace else []
        return [*inside, *super()._program()]

    def answers(self) -> bool:
        """Return whether the server has said that it is the one that was launched, and greets on its socket."""
        try:
            ready = int((self.folder / "pid").read_text()) == self.pid
        except (OSError, ValueError):
            return False
        return ready and greets(str(self.folder / "socket"))


def options(network: Network, node: str) -> tuple[str, ...]:
    """Return what a node is started with. All but addresses and sizes is as MySQL has it by itself."""
    address = network.addresses[node]
    seeds = ",".join(f"{each}:{GROUP_PORT}" for each in network.addresses.values())
    return (
        f"--server-id={NODES.index(node) + 1}",
        "--gtid-mode=ON",
        "--enforce-gtid-consistency=ON",
        "--bind-address=0.0.0.0",  # of the namespace
        f"--port={PORT}",
        f"--report-host={address}",
        "--innodb-buffer-pool-size=64M",
        "--plugin-load-add=group_replication.so",
        f"--group-replication-group-name={GROUP}",
        "--group-replication-start-on-boot=OFF",
        f"--group-replication-local-address={address}:{GROUP_PORT}",
        f"--group-replication-group-seeds={seeds}",
        f"--group-replication-ip-allowlist={NETWORK}.0/24",
        "--group-replication-recovery-get-public-key=ON",
    )


class GroupReplication(Cluster):
    """The node that serves is the group's primary, as long as it sees a majority."""

    name: ClassVar[str] = "group-replication"
    database = "mysql"
    vendor = MYSQL
    no_database = ""

    def make(self, node: str) -> PrivateServer:
        return Node(self.network, node)

    def node_settings(self, node: str) -> dict[str, object]:
        server = self.nodes[node]
        limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), ANSWER_TIMEOUT)
        return {"HOST": str(server.folder / "socket"), "PORT": "", "USER": server.superuser, "OPTIONS": limits}

    def begin(self, node: str) -> None:
        self.nodes[node].start()
        self._patiently(
            node,
            *ACCOUNT,
            "SET GLOBAL group_replication_bootstrap_group = ON",
            "START GROUP_REPLICATION",
            "SET GLOBAL group_replication_bootstrap_group = OFF",
        )
        wait_for(lambda: self.serves(node), SERVES_AGAIN, f"{node} has begun the group")

    def come(self, node: str) -> None:
        first = self._is_new(node)
        self.nodes[node].start()
        if first:
            self._patiently(node, *ACCOUNT)
        # It is refused as long as the group takes the node for one that is there.
        wait_for(lambda: self._join(node), SERVES_AGAIN, f"{node} has joined the group")
        wait_for(lambda: self.is_member(node), SERVES_AGAIN, f"{node} is a member")

    def serves(self, node: str) -> bool:
        state = self.ask(node, OWN)
        if not state:
            return False
        member_state, role, read_only, members, reachable = state[0]
        assert isinstance(members, int)
        assert isinstance(reachable, int)
        return (member_state, role, read_only) == ("ONLINE", "PRIMARY", 0) and reachable * 2 > members

    def is_member(self, node: str) -> bool:
        state = self.ask(node, OWN)
        return bool(state) and state[0][0] == "ONLINE"

    def members(self, node: str) -> int:
        return len(self.ask(node, ONLINE))

    def _join(self, node: str) -> bool:
        """Join the group, unless the node has done so by itself; raise Error if it cannot."""
        state = self.ask(node, OWN)
        if not state or state[0][0] not in ("ONLINE", "RECOVERING"):
            self._patiently(node, "START GROUP_REPLICATION")
        return True

    def _is_new(self, node: str) -> bool:
        return self.nodes[node]._folder is None

    def _patiently(self, node: str, *statements: str) -> None:
        """Run statements that take their time."""
        from django.db import connections

        with self.connected(node, NAME="", OPTIONS={}) as alias, connections[alias].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
