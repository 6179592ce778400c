"""MariaDB with a semi-synchronous replica: what was confirmed is on both servers, so a promotion forgets none of it."""

import time
from typing import ClassVar

from tests.soak.topologies.mariadb_async import MariaDBAsync
from tests.soak.topologies.topology import wait_for

WAITED = "commits-waited"
CLIENTS_NAME = "Rpl_semi_sync_master_clients"
CLIENTS = f"SHOW GLOBAL STATUS LIKE '{CLIENTS_NAME}'"
FOR_EVER = 3_600_000  # milliseconds: the primary never goes on without its replica by itself


class MariaDBSemisync(MariaDBAsync):
    """The primary answers a commit once the replica has it on disk (AFTER_SYNC). While there is no replica, an operator
    lets the primary go on without: nothing else is done to it meanwhile."""

    name: ClassVar[str] = "mariadb-semisync"
    may_forget = False
    consequences = frozenset({WAITED})
    lag = 0.0
    more_options = (
        f"--rpl-semi-sync-master-timeout={FOR_EVER}",
        "--rpl-semi-sync-master-wait-point=AFTER_SYNC",
        "--rpl-semi-sync-slave-enabled",
        "--sync-relay-log=1",
    )

    def expect_a_replica(self, primary: str) -> None:
        """Let commits wait from now on; a replica asks whether they do only when it connects."""
        self._since = time.monotonic()
        self.ask(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 1")

    def has_a_replica(self, primary: str, has_one: bool) -> None:
        if has_one:
            wait_for(lambda: self.ask(primary, CLIENTS) == [(CLIENTS_NAME, "1")], 30.0, f"{primary} has its replica")
            self.note_fault(WAITED, self._since)
        else:
            self.ask(primary, "SET GLOBAL rpl_semi_sync_master_enabled = 0")
