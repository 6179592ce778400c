"""PostgreSQL with a streaming standby that lags, which is promoted."""

import os
from typing import ClassVar

from tests.servers.postgresql import PrivatePostgreSQL
from tests.servers.private import PrivateServer
from tests.soak.databases import POSTGRESQL
from tests.soak.topologies.promotion import CATCH_UP, Promotion
from tests.soak.topologies.topology import wait_for

OPTIONS = ("wal_level=replica", "hot_standby=on", "shared_buffers=32MB", "wal_receiver_timeout=10s")


class PostgreSQLStreaming(Promotion):
    """The standby receives the log `lag` seconds late. What it has not received when its primary dies is forgotten."""

    name: ClassVar[str] = "postgresql-streaming"
    database = "postgresql"
    vendor = POSTGRESQL
    may_forget = True
    jobs = False
    no_database = "postgres"
    lag = 2.0

    def make(self, number: int) -> PrivateServer:
        return PrivatePostgreSQL(options=OPTIONS)

    def node_settings(self, node: str) -> dict[str, object]:
        server = self.nodes[node]
        return {"HOST": str(server.folder), "PORT": server.port, "USER": server.superuser}

    def follow(self, replica: str, primary: str) -> None:
        server = self.nodes[replica]
        assert isinstance(server, PrivatePostgreSQL)
        source = f"host=127.0.0.1 port={self.links[primary].port} user={server.superuser}"
        server.run(
            server._program("pg_basebackup"),
            f"--pgdata={server.folder / 'data'}",
            f"--dbname={source}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
        )
        os.chmod(server.folder / "data", 0o700)
        server.start()

    def caught_up(self, replica: str, primary: str) -> bool:
        ((position,),) = self.ask(primary, "SELECT pg_current_wal_lsn()::text")
        behind = f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
        wait_for(lambda: self.ask(replica, behind) == [(True,)], CATCH_UP, f"{replica} has {position}")
        return True

    def leave_to(self, former: str, promoted: str) -> None:
        self.route(None)
        self.nodes[former].stop()  # which returns when the standby has all of its log

    def promote(self, node: str) -> None:
        self.ask(node, f"SELECT pg_promote(true, {CATCH_UP:.0f})")
