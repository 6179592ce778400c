"""A forked process is a process of its own, as one that an interpreter starts."""

import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.forking import ForkedProcess, can_be_forked
from tests.processes import wait_until

pytestmark = pytest.mark.once

SCRIPT = """\
import os, sys, time
print(os.getpid(), os.getsid(0), os.getcwd(), os.environ["OWN"], sys.argv, "tests" in sys.modules, flush=True)
if sys.argv[1] == "sleep":
    if not os.fork():
        print("child", os.getpid(), flush=True)
    time.sleep(60)
sys.exit(int(sys.argv[1]))
"""


def start(folder: Path, argument: str, **env: str) -> ForkedProcess:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with (folder / "output").open("wb") as output, open(os.devnull) as nothing:
        streams = nothing.fileno(), output.fileno(), output.fileno()
        return ForkedProcess([str(script), argument], folder, {"OWN": "yes", **env}, streams)


def test_it_has_its_own_arguments_environment_folder_session_and_exit_status(tmp_path: Path) -> None:
    process = start(tmp_path, "7")
    assert process.wait(60) == 7 == process.poll()
    printed = (tmp_path / "output").read_text().strip()
    arguments = [str(tmp_path / "script.py"), "7"]
    assert printed == f"{process.pid} {process.pid} {tmp_path} yes {arguments} False"


def test_an_error_is_printed_and_ends_it_with_1(tmp_path: Path) -> None:
    assert start(tmp_path, "seven").wait(60) == 1
    assert "ValueError: invalid literal" in (tmp_path / "output").read_text()


def test_a_signal_ends_it_alone_and_its_group_with_its_requester(tmp_path: Path) -> None:
    process = start(tmp_path, "sleep")
    text = wait_until(lambda: (text := (tmp_path / "output").read_text()).count("\n") == 2 and text)
    child = int(text.split()[-1])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    os.kill(child, 0)
    del process
    wait_until(lambda: not Path(f"/proc/{child}").exists())


def test_a_requester_that_goes_as_another_asks_holds_nobody_up(tmp_path: Path) -> None:
    first = start(tmp_path, "0")
    first.wait(60)
    own = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    (server,) = (int(pid) for pid in own if b"tests.forking" in Path(f"/proc/{pid}/cmdline").read_bytes())
    with ThreadPoolExecutor() as threads:
        os.kill(server, signal.SIGSTOP)
        try:
            second = threads.submit(start, tmp_path, "sleep")
            time.sleep(0.3)  # its request is sent by then
            del first
        finally:
            os.kill(server, signal.SIGCONT)
        try:
            third = threads.submit(start, tmp_path, "0")
            assert third.result(20).wait(20) == 0
        finally:
            second.result().kill()


def test_what_only_an_interpreter_that_starts_can_heed_is_not_forked() -> None:
    assert can_be_forked({"PYTHONPATH": "/elsewhere", "PYTHONUNBUFFERED": "", "DATABASE_URL": "sqlite://"})
    assert not can_be_forked({"PYTHONWARNINGS": "error"})
    assert not can_be_forked({"LD_PRELOAD": "libfaketime.so.1"})
