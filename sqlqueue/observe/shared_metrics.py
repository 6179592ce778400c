"""The metrics of several processes, added up: a folder in which prometheus_client keeps each one's figures."""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import struct
import tempfile
import threading
import time
from pathlib import Path

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector

from sqlqueue.core.lines import line
from sqlqueue.observe.metrics import STANDING

logger = logging.getLogger("sqlqueue")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "sqlqueue-metrics-"
YOUNG = 60.0  # seconds: a folder whose owner may be about to lock it
TRIES = 5


class SharedMetrics:
    """The folder of one supervisor. Locked while that lives, so that the next one knows which were left behind."""

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owned = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._owned, fcntl.LOCK_EX)
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(STANDING)
        MultiProcessCollector(self._registry, str(self.folder))
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.folder)  # for the processes that are started from now on

    def exposition(self) -> bytes:
        """Return the sum of what all processes have counted, dead ones too, and how everything stands."""
        with self._lock:
            for attempt in range(1, TRIES + 1):
                try:
                    return generate_latest(self._registry)
                except (struct.error, RuntimeError):  # a process is about to make its file, and it is still empty
                    if attempt == TRIES:
                        raise
                    time.sleep(0.05)
        raise AssertionError("unreachable")

    def bury(self, pid: int) -> None:
        """Keep what a dead process has counted, for a counter may not fall, but not its files. Raises nothing: that
        some figures are lost must not end the supervisor."""
        with self._lock:
            for file in self.folder.glob(f"*_{pid}.db"):
                try:
                    self._add_up(file)
                except (OSError, ValueError, RuntimeError, struct.error) as error:
                    logger.warning(line("metrics_lost", file=file.name, error=error))
                file.unlink(missing_ok=True)  # what cannot be read would spoil every scrape

    def _add_up(self, file: Path) -> None:
        kind = file.name.partition("_")[0]
        if kind == "gauge":  # of somebody else's; it tells how a process stands, and this one does no more
            return
        sums = MmapedDict(str(self.folder / f"{kind}_dead.db"))
        try:
            for key, value, _, _ in MmapedDict.read_all_values_from_file(str(file)):
                sums.write_value(key, sums.read_value(key)[0] + value, 0.0)
        finally:
            sums.close()

    def remove(self) -> None:
        """Remove the folder. Call it when no process is left."""
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._owned)


def sweep() -> None:
    """Remove the folders of supervisors that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            status = folder.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < YOUNG:
                continue
            owned = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(owned, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # its supervisor lives
        finally:
            os.close(owned)
