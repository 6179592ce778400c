"""Sums the metrics of several processes: prometheus_client keeps each one's values in a shared folder."""

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

from sqlqueue.core.logfmt import logfmt
from sqlqueue.monitoring.metrics import DEATHS, STATS_COLLECTOR

logger = logging.getLogger("sqlqueue")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
PREFIX = "sqlqueue-metrics-"
YOUNG = 60.0  # seconds: the owner of a younger folder may not have locked it yet
TRIES = 5


class SharedMetrics:
    """The folder of one supervisor, which keeps it locked while it lives: an unlocked folder is abandoned."""

    def __init__(self) -> None:
        sweep()
        self.folder = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._owned = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._owned, fcntl.LOCK_EX)
        self._lock = threading.Lock()
        self._registry = CollectorRegistry()
        self._registry.register(STATS_COLLECTOR)
        self._registry.register(DEATHS)  # of this process, which keeps no files
        MultiProcessCollector(self._registry, str(self.folder))
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = str(self.folder)  # for the processes that are started from now on

    def exposition(self) -> bytes:
        """Return the sums of the counters of all processes, dead ones included, and the gauges."""
        with self._lock:
            for attempt in range(1, TRIES + 1):
                try:
                    return generate_latest(self._registry)
                except (struct.error, RuntimeError):  # a process has just created its file, which is still empty
                    if attempt == TRIES:
                        raise
                    time.sleep(0.05)
        raise AssertionError("unreachable")

    def merge_dead(self, pid: int) -> None:
        """Add the counters of a dead process to the sums, since a counter must not fall, and delete its files. Raises
        nothing: lost counts must not end the supervisor."""
        with self._lock:
            for file in self.folder.glob(f"*_{pid}.db"):
                try:
                    self._add_to_sums(file)
                except (OSError, ValueError, RuntimeError, struct.error) as error:
                    logger.warning(logfmt("metrics_lost", file=file.name, error=error))
                file.unlink(missing_ok=True)  # an unreadable file would break every scrape

    def _add_to_sums(self, file: Path) -> None:
        kind = file.name.partition("_")[0]
        if kind == "gauge":  # of another library; a gauge of a dead process has no value any more
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
    """Remove the abandoned folders of supervisors that were killed."""
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
