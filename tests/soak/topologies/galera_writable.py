"""MariaDB with Galera: three nodes, all of them written to, by publishers and consumers that are spread over them."""

import contextlib
import time
from typing import ClassVar

from tests.soak.databases import NAME
from tests.soak.topologies.cluster import REROUTED, WATCH_INTERVAL
from tests.soak.topologies.galera import Galera

NAMED = f"SELECT writer FROM {NAME}.sqlqueue_publish_gate WHERE slot = 0"


class GaleraWritable(Galera):
    """Clients reach every node that serves, in turn. The primary is the one that sqlqueue names."""

    name: ClassVar[str] = "galera-writable"
    _open: tuple[str, ...] = ()

    def _watch(self) -> None:
        from django.db import connections

        served = time.monotonic()
        while not self._stopping.wait(WATCH_INTERVAL):
            found = tuple(node for node in self.nodes if self._says_that_it_serves(node))
            if found != self._open:
                assert self._haproxy
                self._haproxy.route(*found)
                if set(self._open) - set(found):  # connections are closed
                    self.note_fault(REROUTED, served)
                self._open = found
                self._routed = found[0] if found else None
            if found:
                served = time.monotonic()
                self.primary = self._named(found)
        connections.close_all()

    def _named(self, serving: tuple[str, ...]) -> str:
        """Return the node that sqlqueue names, if it serves; else another one."""
        from django.db import Error

        with contextlib.suppress(Error, IndexError):
            writer = str(self.ask(serving[0], NAMED)[0][0])
            for node in serving:
                if str(self.nodes[node].folder) in writer:
                    return node
        return self.primary if self.primary in serving else serving[0]
