"""A streaming standby of a private PostgreSQL server."""

import os
from typing import Any

from tests.processes import wait_until
from tests.servers.postgresql import PrivatePostgreSQL


class Standby(PrivatePostgreSQL):
    """It is made from the primary as it is now, and then stands still: catch_up() lets it apply the primary's log."""

    def __init__(self, primary: PrivatePostgreSQL) -> None:
        super().__init__()
        self._primary = primary

    def install(self) -> None:
        """Copy the primary's data."""
        self.run(
            self._program("pg_basebackup"),
            f"--pgdata={self.folder / 'data'}",
            f"--dbname=host=127.0.0.1 port={self._primary.port} user={self._primary.superuser}",
            "--checkpoint=fast",
            "--wal-method=stream",
            "--write-recovery-conf",
        )
        os.chmod(self.folder / "data", 0o700)

    def catch_up(self, primary: Any, standby: Any) -> None:
        """Apply what the primary has committed before now, and stand still again. Both: Django's connections."""
        position = _ask(primary, "SELECT pg_current_wal_lsn()::text")
        _ask(standby, "SELECT pg_wal_replay_resume()")
        wait_until(
            lambda: _ask(standby, f"SELECT pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"),
            message="the standby does not catch up",
        )
        self.stand_still(standby)

    def stand_still(self, standby: Any) -> None:
        """Let it apply nothing more."""
        _ask(standby, "SELECT pg_wal_replay_pause()")
        wait_until(
            lambda: _ask(standby, "SELECT pg_get_wal_replay_pause_state()") == "paused",
            message="the standby does not stand still",
        )


def _ask(connection: Any, question: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(question)
        return cursor.fetchone()[0]
