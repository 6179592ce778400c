"""What the system knows of processes (Linux's /proc), and signals to them."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

PAGE = os.sysconf("SC_PAGE_SIZE")


def signal_if_there(pid: int, number: signal.Signals) -> bool:
    """Send a signal; False if there is no such process any more."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def all_pids() -> Iterator[int]:
    """Yield the ids of all processes that can be seen."""
    return (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def parent(pid: int) -> int:
    """Return a process's parent; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def descendants(pid: int) -> list[int]:
    """Return the children of a process, and theirs."""
    parents = {each: parent(each) for each in all_pids()}
    found, more = [], [pid]
    while more:
        more = [each for each, above in parents.items() if above in more]
        found += more
    return found


def opens(pid: int, file: Path) -> bool:
    """Tell whether a process has a file open."""
    try:
        return any(os.readlink(entry) == str(file) for entry in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def memory(pid: int) -> int:
    """Return the resident memory of a process in bytes; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0


def threads(pid: int) -> int:
    """Return the number of a process's threads; 0 if it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/task").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def open_files(pid: int) -> int:
    """Return the number of files and sockets that a process has open; 0 if it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except (FileNotFoundError, ProcessLookupError):
        return 0


def runnable() -> int:
    """Return how many threads of the machine run or want to, this one left out."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0]) - 1


def is_stopped(pid: int) -> bool:
    """Tell whether a process stands still after SIGSTOP."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] == "T"
