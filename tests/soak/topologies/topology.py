"""Several database servers under a run, behind haproxy: what all topologies have in common."""

import contextlib
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from tests.servers.private import PrivateServer, ServerError
from tests.soak.databases import NAME, USER, Database, Vendor
from tests.soak.fleet import ALL, WITHOUT_JOBS, Crew
from tests.soak.history import Journal
from tests.soak.proxy import Proxy
from tests.soak.records import EVERYBODY, Failover, Record
from tests.soak.schedule import Kind
from tests.soak.topologies.haproxy import HAProxy
from tests.soak.workload import SCHEDULES, Schedule

POLL = 0.1  # seconds
Aftermath = Callable[[], None]
"""What a fault leaves to be done once clients are served again, such as to make a new replica."""


class Topology(Database):
    """Nodes by their names, one of which clients reach. A fault returns its aftermath."""

    name: ClassVar[str]
    database: ClassVar[str]
    """What DATABASE calls its servers."""
    vendor: ClassVar[Vendor]
    kinds: ClassVar[tuple[Kind, ...]]
    """What the nemesis does to the nodes."""
    consequences: ClassVar[frozenset[str]] = frozenset()
    """What these bring about later, which is a fault of its own in the history."""
    may_forget: ClassVar[bool]
    """Whether a failover of it may forget what was confirmed."""
    jobs: ClassVar[bool] = True
    """Whether everyday jobs are run on it, whose checks know no forgetting and no other order than the log's."""
    schedules: ClassVar[Mapping[str, Schedule]] = SCHEDULES
    """The periodic ones that its processes have."""
    altered: ClassVar[bool] = True
    """Whether the partitions of topics are changed."""
    no_database: ClassVar[str]
    """What a connection names as its database that needs none."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="sqlqueue-topology-"))
        self.nodes: dict[str, PrivateServer] = {}
        self.failovers: list[Failover] = []
        self.primary = ""
        self.journal: Journal | None = None
        """Of the run, once it has begun."""
        self.proxies: dict[str, Proxy] = {}
        self._haproxy: HAProxy | None = None

    # -- what a topology says of itself -------------------------------------------------------------------------------

    def set_up(self) -> None:
        """Start all nodes, and name the primary."""
        raise NotImplementedError

    def where(self, node: str) -> str:
        """Return where a node listens, as haproxy writes it."""
        return f"127.0.0.1:{self.nodes[node].port}"

    def node_settings(self, node: str) -> dict[str, object]:
        """Return what differs in Django's settings of a connection to this node, whatever haproxy says."""
        raise NotImplementedError

    def tear_down(self) -> None:
        """End what it has beside the nodes."""

    # -- what a run needs of its database -----------------------------------------------------------------------------

    def start(self) -> None:
        self.set_up()
        self._haproxy = HAProxy(self.folder, {node: self.where(node) for node in self.nodes})
        self._haproxy.start()
        self.route(self.primary)
        self.proxies = {side: Proxy(self._haproxy.port) for side in ("consumers", "publishers")}
        for proxy in self.proxies.values():
            proxy.start()
        any_node = self.nodes[self.primary]
        self.url = any_node.url(NAME, port=self._haproxy.port)
        self.consumers_url, self.publishers_url = (
            any_node.url(NAME, port=self.proxies[side].port, user=USER) for side in ("consumers", "publishers")
        )

    def prepare(self) -> None:
        from django.db import connection

        with connection._nodb_cursor() as cursor:
            for statement in self.vendor.preparations:
                cursor.execute(statement)

    @property
    def harms(self) -> set[str]:
        """The names of all faults of its nodes."""
        return {kind.name for kind in self.kinds} | self.consequences

    @property
    def crew(self) -> Crew:
        """Its processes."""
        return ALL if self.jobs else WITHOUT_JOBS

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the SQLQUEUE setting of its processes, given the usual one."""
        return options

    def fill_in(self, record: Record) -> None:
        """Read what the final tables say beside what all runs read of them."""

    def begin_run(self, journal: Journal) -> None:
        """The run begins, with this journal."""
        self.journal = journal

    def note_fault(self, kind: str, began: float) -> None:
        """Write down what has been wrong for all clients from then until now."""
        if self.journal:
            self.journal.note("fault", kind, began, EVERYBODY)

    def keep_logs(self, folder: Path) -> None:
        """Copy what the servers have logged into a folder."""
        for name, node in self.nodes.items():
            with contextlib.suppress(OSError, ServerError):
                shutil.copy(node.folder / "error.log", folder / f"node-{name}.log")

    def close(self) -> None:
        for proxy in self.proxies.values():
            proxy.close()
        if self._haproxy:
            self._haproxy.close()
        for node in self.nodes.values():
            node.close()
        self.tear_down()
        shutil.rmtree(self.folder, ignore_errors=True)

    def clients(self) -> int:
        from django.db import connection

        with connection.cursor() as cursor:
            cursor.execute(self.vendor.count_clients)
            return int(cursor.fetchone()[0])

    # -- for its faults -----------------------------------------------------------------------------------------------

    def route(self, node: str | None) -> None:
        """Let clients through to this node alone, or to none."""
        assert self._haproxy
        self._haproxy.route(node)

    def others(self, node: str) -> list[str]:
        """Return the names of the other nodes."""
        return [name for name in self.nodes if name != node]

    @contextmanager
    def connected(self, node: str, **settings: object) -> Iterator[str]:
        """A context with the alias of a connection to a node, of this thread's own."""
        from django.db import connections

        alias = f"{node}-{threading.get_ident()}"
        connections.databases[alias] = connections["default"].settings_dict | self.node_settings(node) | settings
        try:
            yield alias
        finally:
            connections[alias].close()
            del connections[alias], connections.databases[alias]

    def ask(self, node: str, *statements: str) -> list[tuple[object, ...]]:
        """Run statements on a node in autocommit, and return what the last one returns."""
        from django.db import connections

        rows: list[tuple[object, ...]] = []
        with self.connected(node, NAME=self.no_database) as alias, connections[alias].cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
        return rows


def wait_for(condition: Callable[[], object], seconds: float, what: str) -> None:
    """Return when this is so; raise TimeoutError when it is not within so many seconds. A database that does not answer
    is asked again."""
    from django.db import Error

    deadline = time.monotonic() + seconds
    while True:
        try:
            if condition():
                return
            said = ""
        except Error as error:
            said = f": {error}"
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds:g} s: {what}{said}")
        time.sleep(POLL)
