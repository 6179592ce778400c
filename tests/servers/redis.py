"""A private Redis server, for the comparison with queues that live in one."""

import contextlib
import socket
from pathlib import Path

from tests.servers.private import PrivateServer, ServerError, find_program


class PrivateRedis(PrivateServer):
    """A Redis server on a fresh folder and on 127.0.0.1, otherwise as Redis is without a configuration: snapshots, and
    no append-only file."""

    product = "Redis"
    scheme = "redis"
    superuser = ""

    def install(self) -> None:
        """Make the folder of its snapshots."""
        (self.folder / "data").mkdir()

    def command(self) -> list[str]:
        """Return redis-server and its options."""
        program = find_program("redis-server")
        if program is None:
            raise ServerError(
                "There is no redis-server on this machine. On Debian and Ubuntu: apt-get install redis-server."
            )
        return [program, "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder / "data")]

    def url(self, database: str = "", port: int | None = None, user: str | None = None) -> str:
        """Return the URL of a database by its number."""
        return f"redis://127.0.0.1:{port or self.port}/{database or 0}"

    def answers(self) -> bool:
        """Return whether the server answers PING; while it loads its snapshot, it answers with an error."""
        return self.ask("PING").startswith("+PONG")

    def ask(self, line: str) -> str:
        """Return the raw answer to an inline command; empty if the server cannot be reached."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as client:
            client.sendall(f"{line}\r\n".encode())
            answer = client.recv(65536)
            if answer.startswith(b"$"):
                head, _, rest = answer.partition(b"\r\n")
                while len(rest) < int(head[1:]):
                    rest += client.recv(65536)
                answer = rest
            return answer.decode()
        return ""

    @property
    def snapshot(self) -> Path:
        return self.folder / "data" / "dump.rdb"
