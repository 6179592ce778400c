"""A MariaDB server of the tests' own: its data, socket and port are its alone, and it ends with them."""

import atexit
import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

# Unix refuses longer paths of sockets (108 bytes on Linux, 104 on the BSDs).
SOCKET_PATH_LIMIT = 100
PROTOCOL_VERSION = 10
START_TIMEOUT = 60.0
STOP_TIMEOUT = 30.0
ATTEMPTS_TO_FIND_A_PORT = 3


class ServerError(Exception):
    """The private server could not be started; the message ends with the server's own last lines."""


class PrivateMariaDB:
    """A MariaDB server on a fresh data directory, on 127.0.0.1 and a Unix socket; root has no password.

    `log_bin` turns the binary log on; `options` are more words for mariadbd, later ones win. Port, socket and
    data stay the same over kill(), stop() and start(), so that clients can come back. close() ends the server
    and removes its data; leaving the `with` block, or Python, does the same.
    """

    def __init__(self, *, log_bin: bool = False, options: tuple[str, ...] = ()) -> None:
        self.port = 0
        self._options = options
        if log_bin:
            self._options = ("--log-bin=binlog", "--server-id=1", "--binlog-format=ROW", "--sync-binlog=1", *options)
        self._owner = os.getpid()
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    def __enter__(self) -> "PrivateMariaDB":
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
    def socket(self) -> Path:
        """The Unix socket's path."""
        return self.folder / "socket"

    @property
    def pid(self) -> int | None:
        """The server's process id, or None when it does not run."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def url(self, database: str = "") -> str:
        """Return a DATABASE_URL for a database on this server, over TCP."""
        return f"mysql://root@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and return when it answers. Does nothing when it runs."""
        if self.pid:
            return
        first = self._folder is None
        try:
            if first:
                self._install()
            for attempt in range(1, ATTEMPTS_TO_FIND_A_PORT + 1):
                # Another process can take the port between here and the server's start.
                self.port = free_port() if first else self.port
                if self._launch():
                    return
                if not first or attempt == ATTEMPTS_TO_FIND_A_PORT:
                    raise ServerError(f"The private MariaDB server did not start:\n{self._last_lines()}")
        except BaseException:
            if first:
                self.close()
            else:
                self.kill()
            raise

    def stop(self) -> None:
        """Shut the server down in order; its data stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash does (SIGKILL); its data stays."""
        self._end(signal.SIGKILL)

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

    def _install(self) -> None:
        program = find_program("mariadb-install-db")
        self._folder = short_temporary_folder()
        atexit.register(self.close)
        installation = subprocess.run(
            [
                program,
                "--no-defaults",
                f"--datadir={self.folder / 'data'}",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                *run_as(),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if installation.returncode:
            raise ServerError(f"mariadb-install-db failed:\n{installation.stdout[-3000:]}")

    def _launch(self) -> bool:
        """Start the process; return whether it answers."""
        with self._error_log.open("ab") as log:
            self._process = subprocess.Popen(
                [find_program("mariadbd"), *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # the terminal's Ctrl-C is for the tests, which then end the server
            )
        deadline = time.monotonic() + START_TIMEOUT
        while self._process.poll() is None:
            if self._answers():
                return True
            if time.monotonic() > deadline:
                self.kill()
                break
            time.sleep(0.02)
        return False

    def _arguments(self) -> list[str]:
        return [
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

    def _answers(self) -> bool:
        """Return whether the server greets a client: it does so only when it is ready for all."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.settimeout(2)
            client.connect(str(self.socket))
            greeting = client.recv(5)
            return len(greeting) == 5 and greeting[4] == PROTOCOL_VERSION
        return False

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
    def _error_log(self) -> Path:
        return self.folder / "error.log"

    def _last_lines(self) -> str:
        return self._error_log.read_text(errors="replace")[-3000:]


def find_program(name: str) -> str:
    """Return a server program's path, also where an ordinary user's PATH does not reach."""
    path = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"])
    )
    if path is None:
        raise ServerError(
            f"There is no {name} on this machine. On Debian and Ubuntu: apt-get install mariadb-server. "
            "Or set DATABASE_URL=mysql://user:password@host:port/name to use a MariaDB server of yours."
        )
    return path


def run_as() -> list[str]:
    """Return the option without which the server refuses to run as root."""
    return [f"--user={getpass.getuser()}"] if os.geteuid() == 0 else []


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
