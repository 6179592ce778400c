"""Starts Python processes by forking a server that has imported Django and other libraries: half of a start.

A forked process reads its own settings and imports the project itself: the server imports nothing that reads settings.
It has its own arguments, environment, folder, streams, session and exit status, as one that `exec` starts.
"""

import atexit
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any, NoReturn, TextIO

ROOT = Path(__file__).resolve().parent.parent
IMPORTED = (
    "django.contrib.auth.tokens",
    "django.contrib.messages.middleware",
    "django.contrib.sessions.middleware",
    "django.contrib.staticfiles.management",
    "django.core.cache.backends.locmem",
    "django.core.management.commands.makemigrations",
    "django.core.management.commands.migrate",
    "django.db.backends.sqlite3.base",
    "django.middleware.common",
    "django.views.debug",
    "multiprocessing.connection",
)
IMPORTED_IF_INSTALLED = (
    "cronsim",
    "django.db.backends.mysql.base",
    "django_prometheus.urls",
    "django_tasks.backends.immediate",
    "environ",
    "opentelemetry.propagate",
    "rich.progress",
)
# Of what an interpreter reads of its environment as it starts, a forked process can have its own of these.
GIVEN = ("PYTHONPATH", "PYTHONUNBUFFERED")
MOST_BYTES = 200_000  # of a request
# Under this name a process tells those that it starts which of its descriptors leads to the server.
INHERITED = "FORK_SERVER"
STAND_IN = """\
#!{executable} -IS
import sys
sys.path.insert(0, {root!r})
from tests.forking import stand_in
stand_in(sys.argv[1:])
"""


class ForkedProcess:
    """A process that was forked, with the methods of subprocess.Popen that tests need."""

    def __init__(self, arguments: list[str], cwd: Path, env: dict[str, str], streams: tuple[int, int, int]) -> None:
        self._answers, theirs = socket.socketpair()
        with theirs:
            request(fork_server(), arguments, str(cwd), env, (theirs.fileno(), *streams))
        self._lines = self._answers.makefile()
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = int(self._lines.readline())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status; raise subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(f"pid {self.pid}", timeout or 0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start_python(
    arguments: list[str], env: dict[str, str], output: IO[bytes]
) -> ForkedProcess | subprocess.Popen[bytes]:
    """Start `python` with these arguments in a session of its own, forked if that makes no difference."""
    if can_be_forked(env):
        with open(os.devnull) as nothing:
            return ForkedProcess(arguments, ROOT, env, (nothing.fileno(), output.fileno(), output.fileno()))
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def can_be_forked(env: dict[str, str]) -> bool:
    """Say whether a forked process can be what this environment makes of a new interpreter."""
    own = {name for name in env if name.startswith(("PYTHON", "LD_")) and name not in GIVEN}
    folders = [Path(path) for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    customized = any((folder / "sitecustomize.py").exists() for folder in folders)  # which only a start runs
    return not customized and all(env[name] == os.environ.get(name) for name in own)


@functools.cache
def fork_server() -> socket.socket:
    """Start the server, unless this process has inherited one; it ends with the last process that can ask it."""
    if INHERITED in os.environ:
        return socket.socket(fileno=int(os.environ[INHERITED]))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.forking", str(theirs.fileno())],
            cwd=ROOT,
            env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )

    def end() -> None:
        ours.close()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:  # something that a test has left behind could still ask it
            server.kill()

    atexit.register(end)
    return ours


def write_stand_in(folder: Path) -> None:
    """Write a command `python` that asks the server whose descriptor it inherits for a process."""
    folder.mkdir()
    file = folder / "python"
    file.write_text(STAND_IN.format(executable=sys.executable, root=str(ROOT)))
    file.chmod(0o755)


def stand_in(arguments: list[str]) -> NoReturn:
    """Be there for the forked process: pass signals on to it, and end as it ends."""
    if not arguments or (arguments[0].startswith("-") and arguments[0] != "-m"):
        os.execv(sys.executable, [sys.executable, *arguments])
    env = {name: value for name, value in os.environ.items() if name != INHERITED}
    process = ForkedProcess(arguments, Path.cwd(), env, (0, 1, 2))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: process.send_signal(number))
    status = process.wait()
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    sys.exit(status)


def request(
    server: socket.socket, arguments: list[str], cwd: str, env: dict[str, str], descriptors: tuple[int, ...]
) -> None:
    """Ask for a process: its arguments after `python`, and where the answers go and its three streams."""
    body = json.dumps({"arguments": arguments, "cwd": cwd, "env": env}).encode()
    assert len(body) < MOST_BYTES
    socket.send_fds(server, [body], descriptors)


def serve(server: socket.socket) -> dict[str, Any] | None:
    """Fork for each request, and answer with the process id and the exit status, until the last requester has gone.

    It returns in each child what that shall be. A child whose requester goes away is killed with its process group.
    """
    children: dict[int, tuple[int, socket.socket]] = {}  # by the descriptor that tells of its death
    # The child's process id, by the descriptor on which its requester is heard: open, so that no other gets its number.
    requesters: dict[int, tuple[int, socket.socket]] = {}
    poll = select.poll()
    poll.register(server, select.POLLIN)
    while True:
        for descriptor, _event in poll.poll():
            if descriptor == server.fileno():
                body, descriptors, _flags, _address = socket.recv_fds(server, MOST_BYTES, 4)
                if not body:
                    return None
                pid = os.fork()
                if not pid:
                    return {**json.loads(body), "streams": descriptors[1:]}
                answers = socket.socket(fileno=descriptors[0])
                for stream in descriptors[1:]:
                    os.close(stream)
                answers.sendall(f"{pid}\n".encode())
                death = os.pidfd_open(pid)
                children[death] = pid, answers
                requesters[answers.fileno()] = pid, answers
                poll.register(death, select.POLLIN)
                poll.register(answers, select.POLLIN)
            elif descriptor in children:
                pid, answers = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                with contextlib.suppress(OSError):
                    answers.sendall(f"{status}\n".encode())
            elif descriptor in requesters:
                pid, answers = requesters.pop(descriptor)
                poll.unregister(descriptor)
                answers.close()
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)


def become(process: dict[str, Any], libraries: list[str]) -> None:
    """Be the process that was asked for."""
    os.setsid()
    for number, stream in enumerate(process["streams"]):
        os.dup2(stream, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.chdir(process["cwd"])
    os.environ.clear()
    os.environ.update(process["env"])
    time.tzset()
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__ = _unbuffered(sys.stdout), _unbuffered(sys.stderr)
    del sys.modules["tests"]
    first, *rest = process["arguments"]
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [os.getcwd() if first == "-m" else str(Path(first).resolve().parent), *paths, *libraries]
    if first == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *rest]
        runpy.run_path(first, run_name="__main__")


def _unbuffered(stream: TextIO) -> TextIO:
    """Return a text stream that writes at once, as a new interpreter has it where PYTHONUNBUFFERED is set."""
    raw = io.FileIO(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, stream.encoding, stream.errors, write_through=True)


if __name__ == "__main__":
    libraries = sys.path[1:]
    for name in IMPORTED:
        importlib.import_module(name)
    for name in IMPORTED_IF_INSTALLED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.freeze()  # a child's collections then copy no pages of what was imported here
    process = serve(socket.socket(fileno=int(sys.argv[1])))
    if process:
        become(process, libraries)
