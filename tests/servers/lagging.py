"""A primary and a replica that stays behind it until it is promoted."""

from abc import ABC, abstractmethod
from typing import Any

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.private import PrivateServer

CATCHES_UP = 60  # seconds


class Pair(ABC):
    """Two servers. The primary runs when it has been made; the replica is there from replicate() on."""

    primary: PrivateServer
    replica: PrivateServer

    def close(self) -> None:
        """End both."""
        self.primary.close()
        self.replica.close()

    @abstractmethod
    def replicate(self) -> None:
        """Let the replica have what the primary holds now, and nothing of what comes later."""

    @abstractmethod
    def promote(self) -> None:
        """Let the replica accept writes."""


class MariaDBPair(Pair):
    """By MariaDB's own replication, which is stopped where it shall lag."""

    def __init__(self) -> None:
        self.primary = PrivateMariaDB(log_bin=True)
        self.replica = PrivateMariaDB(log_bin=True, options=("--server-id=2", "--read-only=ON"))
        self.primary.start()
        self.replica.start()
        to = f"MASTER_HOST='127.0.0.1', MASTER_PORT={self.primary.port}, MASTER_USER='root'"
        query(self.replica, f"CHANGE MASTER TO {to}, MASTER_USE_GTID=slave_pos")
        query(self.replica, "START SLAVE")

    def replicate(self) -> None:
        ((position,),) = query(self.primary, "SELECT @@gtid_binlog_pos")
        assert query(self.replica, f"SELECT MASTER_GTID_WAIT('{position}', {CATCHES_UP})") == ((0,),)
        query(self.replica, "STOP SLAVE")

    def promote(self) -> None:
        query(self.replica, "RESET SLAVE ALL")
        query(self.replica, "SET GLOBAL read_only = OFF")


class PostgreSQLPair(Pair):
    """By a physical copy of the primary, which is promoted from a standby."""

    def __init__(self) -> None:
        self.primary = PrivatePostgreSQL()
        self.primary.start()
        self.replica = _Standby(self.primary)

    def replicate(self) -> None:
        self.replica.start()

    def promote(self) -> None:
        query(self.replica, "SELECT PG_PROMOTE()")


class _Standby(PrivatePostgreSQL):
    def __init__(self, primary: PrivateServer) -> None:
        super().__init__(options=("hot_standby=on",))
        self._primary = primary

    def install(self) -> None:
        to, source = f"--pgdata={self.folder / 'data'}", f"--port={self._primary.port}"
        host, user = "--host=127.0.0.1", f"--username={self.superuser}"
        self.run(self._program("pg_basebackup"), to, host, source, user, "--checkpoint=fast")
        self.run("touch", str(self.folder / "data" / "standby.signal"))


def query(server: PrivateServer, text: str) -> Any:
    """Run a statement on a server as its superuser; return its rows."""
    if isinstance(server, PrivateMariaDB):
        import MySQLdb  # only there when the suite runs on MySQL or MariaDB

        with MySQLdb.connect(unix_socket=str(server.socket), user=server.superuser, autocommit=True) as client:
            cursor = client.cursor()
            cursor.execute(text)
            return cursor.fetchall()
    import psycopg  # only there when the suite runs on PostgreSQL

    where = f"host=127.0.0.1 port={server.port} user={server.superuser} dbname=postgres"
    with psycopg.connect(where, autocommit=True) as client:
        found = client.execute(text)
        return found.fetchall() if found.description else []


PAIRS: dict[str, type[Pair]] = {"mariadb": MariaDBPair, "postgresql": PostgreSQLPair}
