"""A private MariaDB server that is a node of a Galera cluster."""

from pathlib import Path

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import find_program, free_port

PROVIDER = Path("/usr/lib/galera/libgalera_smm.so")


def missing() -> str:
    """Say what is not installed here; "" if everything is."""
    if not PROVIDER.exists():
        return f"there is no {PROVIDER} (on Debian: apt-get install galera-4)"
    return "" if find_program("mariadbd") else "there is no mariadbd (on Debian: apt-get install mariadb-server)"


class GaleraNode(PrivateMariaDB):
    """A node that begins a cluster. The increment is 1, as where an administrator has set it so."""

    def __init__(self) -> None:
        super().__init__()
        self._group_port = free_port()

    def command(self) -> list[str]:
        """Return mariadbd and its options."""
        return [
            *super().command(),
            "--wsrep-on=ON",
            f"--wsrep-provider={PROVIDER}",
            "--wsrep-cluster-address=gcomm://",
            f"--wsrep-node-address=127.0.0.1:{self._group_port}",
            f"--wsrep-provider-options=gmcast.listen_addr=tcp://127.0.0.1:{self._group_port};gcache.size=16M",
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
