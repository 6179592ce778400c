"""A client of its own that commits all the while: how long the database took no commits is a fault of the history."""

import threading
import time

from tests.soak.history import Journal
from tests.soak.records import EVERYBODY

KIND = "no-commits"
INTERVAL = 0.2  # seconds
STALL = 2.0  # seconds: longer than a commit takes, also on a busy machine
TIMEOUT = 10  # seconds for one answer
DATABASE = "harness"
PREPARATIONS = (
    f"CREATE DATABASE {DATABASE}",
    f"CREATE TABLE {DATABASE}.beat (id INTEGER PRIMARY KEY, number BIGINT)",
    f"INSERT INTO {DATABASE}.beat VALUES (1, 0)",
)
ALIAS = "probe"


class Probe:
    """Commits through haproxy, as applications do, in a thread of its own (MySQL and MariaDB)."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probe", daemon=True)

    def start(self) -> None:
        """Begin; there are PREPARATIONS to be done before."""
        self._thread.start()

    def stop(self) -> None:
        """End, which may take as long as an answer."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        from django.db import Error, connections

        limits = dict.fromkeys(("connect_timeout", "read_timeout", "write_timeout"), TIMEOUT)
        connections.databases[ALIAS] = connections["default"].settings_dict | {"NAME": DATABASE, "OPTIONS": limits}
        committed = time.monotonic()
        while not self._stopping.wait(INTERVAL):
            try:
                with connections[ALIAS].cursor() as cursor:
                    cursor.execute("UPDATE beat SET number = number + 1 WHERE id = 1")
            except Error:
                connections[ALIAS].close()
                continue
            now = time.monotonic()
            if now - committed > STALL:
                self._journal.note("fault", KIND, committed, EVERYBODY)
            committed = now
        connections[ALIAS].close()
