"""What the system knows of a process and its children (Linux's /proc)."""

import contextlib
from collections.abc import Iterator
from pathlib import Path


def children_of(pid: int) -> Iterator[int]:
    """Yield the process ids of a process's children: each leads a process group of its own."""
    for folder in Path("/proc").glob("[0-9]*"):
        if (state := state_of(folder)) is not None and state[1] == pid:
            yield int(folder.name)


def lives(pid: int) -> bool:
    """Return whether a process runs; one that is not reaped yet does not."""
    state = state_of(Path("/proc") / str(pid))
    return state is not None and state[0] not in "ZX"


def state_of(folder: Path) -> tuple[str, int] | None:
    """Return a process's state and its parent; None if it is gone."""
    with contextlib.suppress(OSError):
        state, parent, *_ = (folder / "stat").read_text(errors="replace").rpartition(") ")[2].split()
        return state, int(parent)
    return None
