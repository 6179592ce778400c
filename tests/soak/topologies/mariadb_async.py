"""MariaDB with an asynchronous replica that lags: what it has not received when its primary dies is forgotten."""

import subprocess
from typing import ClassVar

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import PrivateServer, ServerError, find_program
from tests.soak.databases import MYSQL, NAME, Vendor
from tests.soak.topologies.promotion import CATCH_UP, Promotion
from tests.soak.topologies.topology import wait_for

REPLICATOR = "replicator"  # not the applications' account: their connections are counted
REPLICATES = f"GRANT REPLICATION SLAVE ON *.* TO {REPLICATOR}@'127.0.0.1' IDENTIFIED BY ''"
NOT_LOGGED = "SET SESSION sql_log_bin = 0"
CONNECTED = "Waiting for master to send event"
APPLIED = "SELECT @@GLOBAL.gtid_slave_pos"


class MariaDBAsync(Promotion):
    """The replica is `lag` seconds behind. It applies what it has received before it is promoted, and has no more."""

    name: ClassVar[str] = "mariadb-async"
    database = "mariadb"
    vendor = Vendor([*MYSQL.preparations, REPLICATES], MYSQL.count_clients, MYSQL.read_only, MYSQL.read_write)
    may_forget = True
    jobs = False
    no_database = ""
    lag = 2.0
    more_options: tuple[str, ...] = ()

    def make(self, number: int) -> PrivateServer:
        return PrivateMariaDB(log_bin=True, options=(*options(number), *self.more_options))

    def node_settings(self, node: str) -> dict[str, object]:
        server = self._server(node)
        return {"HOST": str(server.socket), "PORT": "", "USER": server.superuser}

    def follow(self, replica: str, primary: str) -> None:
        server = self._server(replica)
        server.install()
        server.start()
        self._copy(replica, primary)
        self.ask(
            replica,
            "SET GLOBAL read_only = 1",
            f"CHANGE MASTER TO master_host = '127.0.0.1', master_port = {self.links[primary].port},"
            f" master_user = '{REPLICATOR}', master_use_gtid = slave_pos, master_connect_retry = 1",
        )
        self.expect_a_replica(primary)
        self.ask(replica, "START SLAVE")
        # Its connection is several round trips, which the lag would make longer than it waits for one.
        wait_for(lambda: self._status(replica)["Slave_IO_State"] == CONNECTED, CATCH_UP, f"{replica} is connected")

    def expect_a_replica(self, primary: str) -> None:
        """Do what is to be done right before the replica connects."""

    def caught_up(self, replica: str, primary: str) -> bool:
        ((position,),) = self.ask(primary, "SELECT @@GLOBAL.gtid_binlog_pos")
        return self.ask(replica, f"SELECT MASTER_GTID_WAIT('{position}', {CATCH_UP:.0f})") == [(0,)]

    def leave_to(self, former: str, promoted: str) -> None:
        # It waits for commits that are under way; not for long.
        self.ask(former, *self.vendor.read_only)
        self.route(None)
        wait_for(lambda: self.caught_up(promoted, former), CATCH_UP, f"{promoted} has caught up with {former}")

    def promote(self, node: str) -> None:
        self.ask(node, "STOP SLAVE IO_THREAD")
        received = self._status(node)["Gtid_IO_Pos"]
        wait_for(lambda: self.ask(node, APPLIED) == [(received,)], CATCH_UP, f"{node} has applied {received}")
        self.ask(node, "STOP SLAVE", "RESET SLAVE ALL", "SET GLOBAL read_only = 0")

    def _status(self, node: str) -> dict[str, object]:
        """Return what a replica says of itself; nothing if it is none."""
        from django.db import connections

        with self.connected(node, NAME="") as alias, connections[alias].cursor() as cursor:
            cursor.execute("SHOW SLAVE STATUS")
            row = cursor.fetchone() or ()
            return dict(zip([column[0] for column in cursor.description], row))

    def _server(self, node: str) -> PrivateMariaDB:
        server = self.nodes[node]
        assert isinstance(server, PrivateMariaDB)
        return server

    def _copy(self, replica: str, primary: str) -> None:
        """Load a dump of the primary, which says where it was taken; accounts are made as they were there."""
        self.ask(replica, NOT_LOGGED, *self.vendor.preparations)
        source, target = ([f"--socket={self._server(node).socket}", "--user=root"] for node in (primary, replica))
        words = ["--single-transaction", "--master-data=1", "--gtid", NAME]
        file = self.folder / "dump.sql"
        with file.open("wb") as dump:
            run([program("mariadb-dump"), "--no-defaults", *source, *words], stdout=dump)
        with file.open("rb") as dump:
            load = [program("mariadb"), "--no-defaults", *target, f"--init-command={NOT_LOGGED}", NAME]
            run(load, stdin=dump, stdout=subprocess.DEVNULL)


def options(number: int) -> tuple[str, ...]:
    """Return what a server is started with beside a binary log."""
    return (
        f"--server-id={number}",
        "--log-slave-updates",
        "--gtid-strict-mode",
        "--skip-slave-start",
        "--slave-net-timeout=10",
        "--innodb-buffer-pool-size=64M",
    )


def program(name: str) -> str:
    """Return the path of one of MariaDB's programs."""
    path = find_program(name)
    if path is None:
        raise ServerError(f"There is no {name} on this machine. As root on Debian: make system-topologies")
    return path


def run(words: list[str], **streams: object) -> None:
    """Run a program to its end. Raise ServerError with what it says if it fails."""
    done = subprocess.run(words, stderr=subprocess.PIPE, check=False, **streams)  # type: ignore[call-overload]
    if done.returncode:
        raise ServerError(f"{words[0]} failed: {done.stderr.decode(errors='replace')[-2000:]}")
