"""Topics that are spread over three servers, while processes are killed and stopped, and servers are away."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import PrivateServer
from tests.soak import database_publisher
from tests.soak.databases import MYSQL, NAME, USER
from tests.soak.fleet import Crew
from tests.soak.places import ALIASES
from tests.soak.records import Record
from tests.soak.schedule import Kind
from tests.soak.topologies.topology import Aftermath, Topology
from tests.soak.workload import ONLY_TOPICS

PARTITIONS = 3
TOPICS = {"orders": ALIASES, "ledger": ALIASES[:1], "strict": ALIASES[1:]}
"""And the databases that they are on."""


class Databases(Topology):
    """Three MariaDB servers, one for each database. No haproxy, and no replica: a database that is down is waited
    for."""

    name, database, vendor = "databases", "mariadb", MYSQL
    kinds = (
        *(Kind(f"kill-database-{database}", 5, 0.0, 6.0) for database in ALIASES),
        *(Kind(f"restart-database-{database}", 2, 0.0, 3.0) for database in ALIASES),
    )
    may_forget = jobs = False
    schedules = {}
    no_database = ""
    aliases = ALIASES
    databases_of_faults = {kind.name: kind.name.rpartition("-")[2] for kind in kinds}
    crew = Crew(
        dict.fromkeys(database_publisher.WAYS, "database_publisher"),
        {
            "supervised": ("--processes=1",),
            "alone": ("--processes=1",),
            "witness": ("--processes=0", "--database=default"),
            "visitor": ("--processes=0", "--database=queue_b"),
        },
    )
    altered = False

    def set_up(self) -> None:
        for database in ALIASES:
            self.nodes[database] = server = PrivateMariaDB()
            server.start()

    def start(self) -> None:
        self.set_up()
        first, *others = ALIASES
        self.url = self.nodes[first].url(NAME)
        self.consumers_url = self.publishers_url = self.nodes[first].url(NAME, user=USER)
        os.environ["FURTHER_URLS"] = self._urls(others)
        self.environment = {"FURTHER_URLS": self._urls(others, USER)}
        os.environ["SQLQUEUE"] = json.dumps({"TOPICS": {topic: {"databases": on} for topic, on in TOPICS.items()}})
        os.environ[ONLY_TOPICS] = ",".join(TOPICS)

    def prepare(self) -> None:
        for database in ALIASES:
            self.ask(database, *self.vendor.preparations)

    def node_settings(self, node: str) -> dict[str, object]:
        server = self.nodes[node]
        assert isinstance(server, PrivateServer)
        return {"PORT": server.port, "USER": server.superuser}

    def close(self) -> None:
        super().close()
        for name in ("FURTHER_URLS", "SQLQUEUE", ONLY_TOPICS):
            os.environ.pop(name, None)

    def clients(self) -> int:
        return sum(int(str(self.ask(database, self.vendor.count_clients)[0][0])) for database in ALIASES)

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        topics = {
            topic: options["TOPICS"][topic] | {"partitions": PARTITIONS, "databases": databases}
            for topic, databases in TOPICS.items()
        }
        return {**options, "TOPICS": topics, "SCHEDULES": {}}

    def fill_in(self, record: Record) -> None:
        record.databases.update(TOPICS)

    def faults(self) -> dict[str, Callable[[float], Aftermath | None]]:
        def away(database: str, end: Callable[[], None], seconds: float) -> None:
            from django.db import connections

            try:
                end()
                time.sleep(seconds)
            finally:
                self.nodes[database].start()
                connections[database].close()

        found: dict[str, Callable[[float], Aftermath | None]] = {}
        for database, server in self.nodes.items():
            found[f"kill-database-{database}"] = lambda seconds, database=database, end=server.kill: away(
                database, end, seconds
            )
            found[f"restart-database-{database}"] = lambda seconds, database=database, end=server.stop: away(
                database, end, seconds
            )
        return found

    def _urls(self, databases: list[str], user: str | None = None) -> str:
        return " ".join(f"{database}={self.nodes[database].url(NAME, user=user)}" for database in databases)
