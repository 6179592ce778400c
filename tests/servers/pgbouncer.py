"""PgBouncer in front of a private PostgreSQL server, with transactions that share its sessions."""

import contextlib
import os
import signal
import socket

from tests.servers.postgresql import ACCOUNT, PrivatePostgreSQL, lets_in
from tests.servers.private import PrivateServer, ServerError, find_program

SETTINGS = """
[databases]
* = host=127.0.0.1 port={behind} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
max_client_conn = 1000
default_pool_size = {sessions}
ignore_startup_parameters = extra_float_digits
server_login_retry = 0.2
server_check_delay = 0
query_wait_timeout = 20
{more}
"""


class PrivatePgBouncer(PrivateServer):
    """A pooler on 127.0.0.1. `sessions`: how many the clients of one database share; a transaction that finds none free
    waits. `options` are more settings (`name = value`), later ones win."""

    product = "PgBouncer"
    scheme = "postgresql"
    superuser = PrivatePostgreSQL.superuser
    stop_signal = signal.SIGINT

    def __init__(self, behind: PrivatePostgreSQL, *, sessions: int = 100, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._behind, self._sessions, self._more = behind, sessions, "\n".join(options)

    @property
    def account(self) -> str | None:
        """It refuses to run as root."""
        return ACCOUNT if os.geteuid() == 0 else None

    def install(self) -> None:
        """Nothing is to be made: `command` writes the settings, which name the port."""

    def command(self) -> list[str]:
        """Return pgbouncer and its settings."""
        program = find_program("pgbouncer")
        if program is None:
            raise ServerError("There is no pgbouncer on this machine. On Debian and Ubuntu: apt-get install pgbouncer.")
        text = SETTINGS.format(
            behind=self._behind.port, user=self.superuser, port=self.port, sessions=self._sessions, more=self._more
        )
        file = self.folder / "pgbouncer.ini"
        file.write_text(text)
        return [program, str(file)]

    def answers(self) -> bool:
        """Return whether the pooler, and the server behind it, let a client in."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=2) as client:
            return lets_in(client)
        return False
