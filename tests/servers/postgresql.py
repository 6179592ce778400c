"""A private PostgreSQL server."""

import contextlib
import os
import signal
import socket
import struct
from pathlib import Path

from tests.processes import wait_until
from tests.servers.children import children_of, lives
from tests.servers.private import PrivateServer, ServerError, find_program

ACCOUNT = "postgres"  # Debian's package makes it; the server refuses to run as root
STARTUP = struct.pack("!I", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"  # protocol 3.0


class PrivatePostgreSQL(PrivateServer):
    """A PostgreSQL server on a fresh data directory, on 127.0.0.1 and a Unix socket; everybody is trusted.

    `options` are more settings (`name=value`), later ones win. `durable`: it waits for the disk. Only the crash of the
    machine, not the server's, can tell the difference, and a benchmark.
    """

    product = "PostgreSQL"
    scheme = "postgresql"
    superuser = "postgres"
    stop_signal = signal.SIGINT  # "fast": SIGTERM would wait until the last client has gone

    def __init__(self, *, durable: bool = False, options: tuple[str, ...] = ()) -> None:
        super().__init__()
        self._options = (f"fsync={'on' if durable else 'off'}", *options)

    @property
    def account(self) -> str | None:
        """Only root can and must run it as another account."""
        return ACCOUNT if os.geteuid() == 0 else None

    def install(self) -> None:
        """Make a data directory."""
        self.run(
            self._program("initdb"),
            f"--pgdata={self.folder / 'data'}",
            f"--username={self.superuser}",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C.UTF-8",
        )

    def command(self) -> list[str]:
        """Return postgres and its settings."""
        settings = (
            "listen_addresses=127.0.0.1",
            f"unix_socket_directories={self.folder}",
            "max_connections=300",
            "max_prepared_transactions=10",
            *self._options,
        )
        words = [word for setting in settings for word in ("-c", setting)]
        return [self._program("postgres"), "-D", str(self.folder / "data"), "-p", str(self.port), *words]

    def answers(self) -> bool:
        """Return whether the server lets a client in; while it starts up or recovers, it answers with an error."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(self.folder / f".s.PGSQL.{self.port}"))
            return lets_in(client)
        return False

    def kill(self) -> None:
        """End the server and all its processes at once: as long as one is left, the data is not free for the next."""
        if self.pid is None:
            super().kill()
            return
        os.kill(self.pid, signal.SIGSTOP)  # it starts no more of them
        children = list(children_of(self.pid))
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        super().kill()
        wait_until(lambda: not any(map(lives, children)), message="the server's processes outlive it")

    def close(self) -> None:
        """End the server in order first: a killed one leaves its shared memory behind."""
        if os.getpid() == self._owner:
            self.stop()
        super().close()

    def _program(self, name: str) -> str:
        folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: folder.parent.name.zfill(9))
        path = find_program(name, *map(str, reversed(folders)))
        if path is None:
            raise ServerError(
                f"There is no {name} on this machine. On Debian and Ubuntu: apt-get install postgresql. "
                "Or set DATABASE_URL=postgresql://user:password@host:port/name to use a PostgreSQL server of yours."
            )
        return path


def lets_in(client: socket.socket) -> bool:
    """Tell whether what a client has just been connected to lets it in."""
    client.sendall(struct.pack("!I", len(STARTUP) + 4) + STARTUP)
    return client.recv(1) == b"R"
