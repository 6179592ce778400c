"""A private MariaDB server that is a node of a Galera cluster, and clusters of such nodes."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.servers.mariadb import PrivateMariaDB, run_as
from tests.servers.private import find_program, free_port

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")
ACCOUNT = "mysql"  # Debian's package makes it


def missing_for_several() -> str:
    """Say what several nodes lack here; "" if nothing."""
    return missing() or ("" if shutil.which("rsync") else "there is no rsync")


def missing() -> str:
    """Say what is not installed here; "" if everything is."""
    if not PROVIDER.exists():
        return f"there is no {PROVIDER} (on Debian: apt-get install galera-4)"
    return "" if find_program("mariadbd") else "there is no mariadbd (on Debian: apt-get install mariadb-server)"


class GaleraNode(PrivateMariaDB):
    """A node that begins a cluster, or joins that of another one. The increment is 1, as where an administrator has set
    it so."""

    def __init__(self, beside: "GaleraNode | None" = None) -> None:
        super().__init__()
        self._group_port, self._copy_port, self._missed_port = free_port(), free_port(), free_port()
        self._group = "" if beside is None else f"127.0.0.1:{beside._group_port}"

    def install(self) -> None:
        """Make a data directory. A node that joins gets a copy by rsync, which as root would give everything away."""
        super().install()
        if run_as():
            self.run("chown", "--recursive", ACCOUNT, str(self.folder))

    def command(self) -> list[str]:
        """Return mariadbd and its options."""
        provider = [
            f"gmcast.listen_addr=tcp://127.0.0.1:{self._group_port}",
            f"ist.recv_addr=127.0.0.1:{self._missed_port}",
            "gcache.size=16M",
        ]
        return [
            *(word for word in super().command() if word not in run_as()),  # of two accounts the first would win
            *([f"--user={ACCOUNT}"] if run_as() else []),
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            f"--wsrep-cluster-address=gcomm://{self._group}",
            f"--wsrep-node-address=127.0.0.1:{self._group_port}",
            f"--wsrep-provider-options={';'.join(provider)}",
            "--wsrep-sst-method=rsync",
            f"--wsrep-sst-receive-address=127.0.0.1:{self._copy_port}",
            "--wsrep-auto-increment-control=OFF",
            "--binlog-format=ROW",
            "--innodb-autoinc-lock-mode=2",
        ]

    def answers(self) -> bool:
        """Return whether the server greets, and the cluster has accepted it."""
        if not super().answers():
            return False
        import MySQLdb  # only there when the suite runs on MySQL or MariaDB

        with MySQLdb.connect(unix_socket=str(self.socket), user=self.superuser) as client:
            cursor = client.cursor()
            cursor.execute("SHOW GLOBAL STATUS LIKE 'wsrep_ready'")
            return cursor.fetchone()[1] == "ON"


@contextmanager
def cluster(nodes: int) -> Iterator[list[GaleraNode]]:
    """A cluster of so many nodes, the first of which has begun it. In a `with` block."""
    with ExitStack() as running:
        members: list[GaleraNode] = []
        for _ in range(nodes):
            members.append(running.enter_context(GaleraNode(members[0] if members else None)))
        yield members
