"""A private MariaDB server."""

import contextlib
import getpass
import os
import socket
from pathlib import Path

from tests.servers.private import PrivateServer, ServerError, find_program

PROTOCOL_VERSION = 10
BINARY_LOG = ("--log-bin=binlog", "--server-id=1", "--sync-binlog=1")


class PrivateMariaDB(PrivateServer):
    """A MariaDB server on a fresh data directory, on 127.0.0.1 and a Unix socket; root has no password.

    `log_bin` turns the binary log on; `options` are more words for mariadbd, later ones win.
    """

    product = "MariaDB"
    scheme = "mysql"
    superuser = "root"

    def __init__(self, *, log_bin: bool = False, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._options = (*BINARY_LOG, "--binlog-format=ROW", *options) if log_bin else options

    @property
    def socket(self) -> Path:
        """The Unix socket's path."""
        return self.folder / "socket"

    def install(self) -> None:
        """Make a data directory."""
        self.run(
            self._program("mariadb-install-db"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--tmpdir={self.folder}",  # a server that starts deletes the temporary tables of others from a shared one
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            *run_as(),
        )

    def command(self) -> list[str]:
        """Return mariadbd and its options."""
        return [
            self._program("mariadbd"),
            "--no-defaults",
            f"--datadir={self.folder / 'data'}",
            f"--socket={self.socket}",
            f"--pid-file={self.folder / 'pid'}",
            f"--tmpdir={self.folder}",
            "--skip-networking=0",
            "--bind-address=127.0.0.1",
            f"--port={self.port}",
            "--skip-name-resolve",
            "--character-set-server=utf8mb4",
            "--collation-server=utf8mb4_unicode_ci",
            "--max-connections=300",
            "--lock-wait-timeout=60",  # a forgotten transaction fails a test's clean-up, and does not hang it for a day
            "--innodb-buffer-pool-size=256M",
            "--innodb-flush-log-at-trx-commit=1",
            *run_as(),
            *self._options,
        ]

    def answers(self) -> bool:
        """Return whether the server greets on its socket."""
        return greets(str(self.socket))

    def _program(self, name: str) -> str:
        path = find_program(name)
        if path is None:
            raise ServerError(
                f"There is no {name} on this machine. On Debian and Ubuntu: apt-get install mariadb-server. "
                "Or set DATABASE_URL=mysql://user:password@host:port/name to use a MariaDB server of yours."
            )
        return path


def greets(address: str | tuple[str, int]) -> bool:
    """Return whether the server on a Unix socket, or a host and port, greets: it does so when it is ready for all."""
    family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family) as client:
        client.settimeout(2)
        client.connect(address)
        greeting = client.recv(5)
        return len(greeting) == 5 and greeting[4] == PROTOCOL_VERSION
    return False


def run_as() -> list[str]:
    """Return the option without which the server refuses to run as root."""
    return [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []
