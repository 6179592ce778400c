"""A database server of the tests' own: its data and its port are its alone, and it ends with them."""

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from tests.servers.children import children_of
from tests.servers.ending import unwind_when_terminated

# Unix refuses longer paths of sockets (108 bytes on Linux, 104 on the BSDs).
SOCKET_PATH_LIMIT = 100
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
ATTEMPTS_TO_FIND_A_PORT = 3
# How a client's request to commit ends (and nothing else does): a query's text, PostgreSQL's with a zero behind it.
COMMIT_REQUEST = rb"COMMIT\0?\Z"

Server = TypeVar("Server", bound="PrivateServer")


class ServerError(Exception):
    """The private server could not be started; the message ends with the server's own last lines."""


class PrivateServer(ABC):
    """A server on a fresh folder and on 127.0.0.1, whose superuser needs no password.

    Port and data stay the same over kill(), stop() and start(), so that clients can come back. close() ends the server
    and removes its data; leaving the `with` block, or Python, does the same, also where a signal asks for that. A kind
    of server says what it is called, how it is made (`install`), which process it is (`command`) and when it is ready
    (`answers`).
    """

    product: ClassVar[str]
    scheme: ClassVar[str]  # of its URLs
    superuser: ClassVar[str]
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM  # lets clients go and shuts down in order
    kill_signal: ClassVar[signal.Signals] = signal.SIGKILL  # ends the server as a crash does

    def __init__(self) -> None:
        self.port = 0
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def account(self) -> str | None:
        """The system's user that the server runs as and its folder belongs to; None: who runs the tests."""
        return None

    def new_folder(self) -> Path:
        """Make the folder for all the server's files."""
        return short_temporary_folder()

    @abstractmethod
    def install(self) -> None:
        """Make the server's data in `folder`. Raise ServerError if that cannot be."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """Return the program and its words that serve on `port`, in the foreground. It is run anew by each start()."""

    @abstractmethod
    def answers(self) -> bool:
        """Return whether the server that was just launched is ready for clients; it is asked until it is."""

    def __enter__(self: Server) -> Server:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def folder(self) -> Path:
        """The folder that holds all the server's files."""
        if self._folder is None:
            raise ServerError("The server has not been started.")
        return self._folder

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def url(self, database: str = "", port: int | None = None, user: str | None = None) -> str:
        """Return a DATABASE_URL for a database on this server, over TCP; `port`: of something in front of it."""
        return f"{self.scheme}://{user or self.superuser}@127.0.0.1:{port or self.port}/{database}"

    def start(self) -> None:
        """Start the server and return when it answers. Does nothing when it runs."""
        if self.pid:
            return
        first = self._folder is None
        unwind_when_terminated()
        try:
            if first:
                self._folder = self.new_folder()
                atexit.register(self.close)
                if self.account:
                    shutil.chown(self.folder, self.account)
                self.install()
            for attempt in range(1, ATTEMPTS_TO_FIND_A_PORT + 1):
                # Another process can take the port between here and the server's start.
                self.port = free_port() if first else self.port
                if self._launch():
                    return
                if not first or attempt == ATTEMPTS_TO_FIND_A_PORT:
                    raise ServerError(f"The private {self.product} server did not start:\n{self._last_lines()}")
        except BaseException:
            if first:
                self.close()
            else:
                self.kill()
            raise

    def stop(self) -> None:
        """Shut the server down in order; its data stays."""
        self._end(self.stop_signal)

    def kill(self) -> None:
        """End the server at once, as a crash does; its data stays."""
        self._end(self.kill_signal)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let nothing of the server move (SIGSTOP), as on a machine that hangs."""
        assert self.pid is not None
        pids = [self.pid]
        try:
            os.kill(self.pid, signal.SIGSTOP)  # it starts no more of them
            pids += children_of(self.pid)
            self._signal(pids, signal.SIGSTOP)
            yield
        finally:
            self._signal(reversed(pids), signal.SIGCONT)

    @staticmethod
    def _signal(pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def restart(self) -> None:
        """Shut down and start again on the same port."""
        self.stop()
        self.start()

    def close(self) -> None:
        """End the server and remove all it wrote."""
        if os.getpid() != self._owner:
            return  # a fork's exit is not ours
        atexit.unregister(self.close)
        self.kill()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def run(self, *command: str) -> None:
        """Run a program of the installation to its end, as the server's user. Raise ServerError if it fails."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            **self._identity(),
        )
        if done.returncode:
            raise ServerError(f"{' '.join(command)} failed:\n{done.stdout[-3000:]}")

    def _launch(self) -> bool:
        """Start the process; return whether it answers."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for the tests, which then end the server
                **self._identity(),
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None:
            if self.answers():
                return True
            if time.monotonic() > deadline:
                self.kill()
                break
            time.sleep(0.02)
        return False

    def _identity(self) -> dict[str, Any]:
        if self.account is None:
            return {}
        user = pwd.getpwnam(self.account)
        return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": [], "cwd": self.folder}

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    @property
    def _log(self) -> Path:
        return self.folder / "error.log"

    def _last_lines(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def short_temporary_folder() -> Path:
    """Return a new folder whose path leaves room for a socket's name."""
    folder = Path(tempfile.mkdtemp(prefix="sqlqueue-"))
    if len(str(folder / "socket")) > SOCKET_PATH_LIMIT:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="sqlqueue-", dir="/tmp"))
    return folder


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that was free just now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def find_program(name: str, *folders: str) -> str | None:
    """Return a server program's path, also where an ordinary user's PATH does not reach; None if there is none."""
    path = [*folders, os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]
    return shutil.which(name, path=os.pathsep.join(path))
