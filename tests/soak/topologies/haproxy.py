"""haproxy in front of a topology's nodes: clients reach those that it is told, in turn; mostly one, or none."""

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from tests.servers.private import ServerError, find_program, free_port

START_TIMEOUT = 20.0
CONNECT_TIMEOUT = 2  # seconds: longer than a server on this machine takes
IDLE_TIMEOUT = 3600  # seconds: longer than any run


def configuration(port: int, control: Path, nodes: Mapping[str, str]) -> str:
    """Return the configuration file. nodes: where each listens, as haproxy writes it (address, maybe a namespace)."""
    servers = "".join(f"    server {name} {where} disabled\n" for name, where in nodes.items())
    return f"""\
global
    maxconn 1000
    stats socket {control} mode 600 level admin

defaults
    mode tcp
    timeout connect {CONNECT_TIMEOUT}s
    timeout client {IDLE_TIMEOUT}s
    timeout server {IDLE_TIMEOUT}s

listen primary
    bind 127.0.0.1:{port}
    default-server on-marked-down shutdown-sessions
{servers}"""


class HAProxy:
    """One process on 127.0.0.1:`port`. Until it is told otherwise, it lets no client through."""

    def __init__(self, folder: Path, nodes: Mapping[str, str]) -> None:
        self.port = free_port()
        self._nodes = dict(nodes)
        self._control, self._file = folder / "haproxy.control", folder / "haproxy.cfg"
        self._log = folder / "haproxy.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it. Raise ServerError if it is not installed, or does not come up."""
        program = find_program("haproxy")
        if program is None:
            raise ServerError("There is no haproxy on this machine. As root on Debian: make system-topologies")
        self._file.write_text(configuration(self.port, self._control, self._nodes))
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [program, "-db", "-f", str(self._file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_TIMEOUT
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerError(f"haproxy did not start:\n{self._log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)

    def route(self, *chosen: str | None) -> None:
        """Let clients through to these nodes alone, in turn, or to none; connections to all others are closed."""
        for name in self._nodes:
            if name not in chosen:
                self._tell(f"set server primary/{name} state maint")
                self._tell(f"shutdown sessions server primary/{name}")
        for name in filter(None, chosen):
            self._tell(f"set server primary/{name} state ready")

    def close(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _tell(self, command: str) -> None:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(5)
            client.connect(str(self._control))
            client.sendall(command.encode() + b"\n")
            answer = b"".join(iter(lambda: client.recv(4096), b"")).strip()
        if answer:
            raise ServerError(f"haproxy does not take {command!r}: {answer.decode(errors='replace')}")

    def _answers(self) -> bool:
        try:
            self._tell("set server primary/" + next(iter(self._nodes)) + " state maint")
        except (OSError, ServerError):
            return False
        return True
