"""Topics that are spread over three servers, while processes are killed and stopped, and servers are away."""

import json
import os
import time
from collections.abc import Callable
from typing import Any

from tests.servers.mariadb import PrivateMariaDB
from tests.servers.private import PrivateServer
from tests.soak import shard_publisher
from tests.soak.databases import MYSQL, NAME, USER
from tests.soak.fleet import Crew
from tests.soak.places import ALIASES, SHARDS
from tests.soak.records import Record
from tests.soak.schedule import Kind
from tests.soak.topologies.topology import Aftermath, Topology
from tests.soak.workload import ONLY_TOPICS

PARTITIONS = 3
TOPICS = {"orders": ("a", "b", "c"), "ledger": ("a",), "strict": ("b", "c")}
"""And the shards that they are on."""


class Shards(Topology):
    """Three MariaDB servers, one for each shard. No haproxy, and no replica: a shard that is down is waited for."""

    name, database, vendor = "shards", "mariadb", MYSQL
    kinds = (
        *(Kind(f"kill-shard-{shard}", 5, 0.0, 6.0) for shard in SHARDS),
        *(Kind(f"restart-shard-{shard}", 2, 0.0, 3.0) for shard in SHARDS),
    )
    may_forget = jobs = False
    schedules = {}
    no_database = ""
    aliases = tuple(ALIASES.values())
    shards_of_faults = {kind.name: kind.name[-1] for kind in kinds}
    crew = Crew(
        dict.fromkeys(shard_publisher.WAYS, "shard_publisher"),
        {
            "supervised": ("--processes=1",),
            "alone": ("--processes=1",),
            "witness": ("--processes=0", "--shard=a"),
            "visitor": ("--processes=0", "--shard=b"),
        },
    )
    altered = False

    def set_up(self) -> None:
        for shard in SHARDS:
            self.nodes[shard] = server = PrivateMariaDB()
            server.start()

    def start(self) -> None:
        self.set_up()
        first, *others = SHARDS
        self.url = self.nodes[first].url(NAME)
        self.consumers_url = self.publishers_url = self.nodes[first].url(NAME, user=USER)
        os.environ["SHARD_URLS"] = self._urls(others)
        self.environment = {"SHARD_URLS": self._urls(others, USER)}
        os.environ["SQLQUEUE"] = json.dumps({"SHARDS": self._setting})
        os.environ[ONLY_TOPICS] = ",".join(TOPICS)

    def prepare(self) -> None:
        for shard in SHARDS:
            self.ask(shard, *self.vendor.preparations)

    def node_settings(self, node: str) -> dict[str, object]:
        server = self.nodes[node]
        assert isinstance(server, PrivateServer)
        return {"PORT": server.port, "USER": server.superuser}

    def close(self) -> None:
        super().close()
        for name in ("SHARD_URLS", "SQLQUEUE", ONLY_TOPICS):
            os.environ.pop(name, None)

    def clients(self) -> int:
        return sum(int(str(self.ask(shard, self.vendor.count_clients)[0][0])) for shard in SHARDS)

    def options(self, options: dict[str, Any]) -> dict[str, Any]:
        topics = {
            topic: options["TOPICS"][topic] | {"partitions": PARTITIONS, "shards": shards}
            for topic, shards in TOPICS.items()
        }
        return {**options, "TOPICS": topics, "SCHEDULES": {}, "SHARDS": self._setting}

    def fill_in(self, record: Record) -> None:
        record.shards.update(TOPICS)

    def faults(self) -> dict[str, Callable[[float], Aftermath | None]]:
        def away(shard: str, end: Callable[[], None], seconds: float) -> None:
            from django.db import connections

            try:
                end()
                time.sleep(seconds)
            finally:
                self.nodes[shard].start()
                connections[ALIASES[shard]].close()

        found: dict[str, Callable[[float], Aftermath | None]] = {}
        for shard, server in self.nodes.items():
            found[f"kill-shard-{shard}"] = lambda seconds, shard=shard, end=server.kill: away(shard, end, seconds)
            found[f"restart-shard-{shard}"] = lambda seconds, shard=shard, end=server.stop: away(shard, end, seconds)
        return found

    @property
    def _setting(self) -> dict[str, dict[str, str]]:
        return {shard: {"alias": ALIASES[shard]} for shard in SHARDS}

    def _urls(self, shards: list[str], user: str | None = None) -> str:
        return " ".join(f"{ALIASES[shard]}={self.nodes[shard].url(NAME, user=user)}" for shard in shards)
