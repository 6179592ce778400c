"""Processes of the tests' project on the test database, and waiting for what they do."""

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from django.db import connections

from tests.forking import start_python

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
SCHEME_BY_VENDOR = {"mysql": "mysql", "postgresql": "postgresql"}
POLL_INTERVAL = 0.02


def wait_until(condition: Callable[[], T], timeout: float = 60.0, message: str | Callable[[], str] = "") -> T:
    """Call `condition` until it returns something true, and return that.

    After `timeout` seconds raise AssertionError with `message`; one that is a function is called only then.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = condition()
        if result:
            return result
        if time.monotonic() > deadline:
            said = message() if callable(message) else message
            raise AssertionError(f"Not within {timeout:g} s: {said or condition!r}")
        time.sleep(POLL_INTERVAL)


def database_url(alias: str = "default") -> str:
    """Return a DATABASE_URL for the database that this connection uses: inside a test, the test database."""
    connection = connections[alias]
    config = connection.settings_dict
    if connection.vendor == "sqlite":
        return f"sqlite:///{config['NAME']}"
    user = quote(config["USER"], safe="")
    password = f":{quote(config['PASSWORD'], safe='')}" if config["PASSWORD"] else ""
    host = config["HOST"] or "localhost"
    port = f":{config['PORT']}" if config["PORT"] else ""
    options = {
        name: config["OPTIONS"][name] for name in ("unix_socket", "isolation_level") if name in config["OPTIONS"]
    }
    if host.startswith("/"):
        host, options["unix_socket"] = "localhost", host
    query = f"?{urlencode(options)}" if options else ""
    return f"{SCHEME_BY_VENDOR[connection.vendor]}://{user}{password}@{host}{port}/{config['NAME']}{query}"


def environment(**changes: str) -> dict[str, str]:
    """Return the environment in which a Python process is one of the tests' project, on the test database."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return inherited | {
        "DATABASE_URL": database_url(),
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        **changes,
    }


class ManageCommand:
    """`python manage.py …` as a process of its own. What it prints, to both streams, is in `output`.

    It leads a process group, so that end() also ends the children it may have left.
    """

    def __init__(
        self, *arguments: str, output: Path, env: dict[str, str] | None = None, script: Path = ROOT / "manage.py"
    ) -> None:
        self.arguments = arguments
        self._output = output
        with output.open("wb") as file:
            self._process = start_python([str(script), *arguments], environment(**(env or {})), file)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status, negative for a signal; None while the process runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def wait_for_line(self, pattern: str, timeout: float = 60.0) -> re.Match[str]:
        """Return the first match in the output; raise AssertionError when time is up or the process is gone."""
        expression = re.compile(pattern, re.MULTILINE)

        def seen_or_gone() -> tuple[re.Match[str] | None] | None:
            gone = self.returncode is not None  # before reading, so that the last words are read
            match = expression.search(self.output)
            return (match,) if match or gone else None

        (match,) = wait_until(seen_or_gone, timeout, lambda: f"{self} has not printed {pattern!r}\n{self.output}")
        assert match, f"{self} ended with {self.returncode} and never printed {pattern!r}\n{self.output}"
        return match

    def wait(self, timeout: float = 60.0) -> int:
        """Return the exit status when the process has ended; raise AssertionError when it does not."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self} still runs after {timeout:g} s\n{self.output}") from None

    def terminate(self) -> None:
        """Ask for a graceful stop (SIGTERM)."""
        self._process.terminate()

    def interrupt(self) -> None:
        """Ask for a stop as Ctrl-C does (SIGINT), of this process alone."""
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End this process alone, at once (SIGKILL), and return when it is gone."""
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """End this process and its children at once, as a power failure does, and return when it is gone."""
        self._signal_group(signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        """Stop this process and its children where they stand (SIGSTOP)."""
        self._signal_group(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on (SIGCONT)."""
        self._signal_group(signal.SIGCONT)

    def end(self) -> None:
        """End all that is left of it, in any state."""
        self.kill_all()

    def __str__(self) -> str:
        return f"manage.py {' '.join(self.arguments)} (pid {self.pid})"

    def _signal_group(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class ManageCommands:
    """Starts processes, and ends them all when the test is over. The fixture `manage` is one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[ManageCommand] = []

    def __call__(self, *arguments: str, **options: Any) -> ManageCommand:
        """Start `python manage.py` with these arguments; options: `env`, which is added to its environment, and
        another `script`."""
        output = self._folder / f"process-{len(self._started) + 1}.log"
        command = ManageCommand(*arguments, output=output, **options)
        self._started.append(command)
        return command

    def end(self) -> None:
        for command in self._started:
            command.end()
