"""A short run on each topology with its real servers; `make soak TOPOLOGY=` has the long ones."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.servers import galera
from tests.servers.mysql import DEBIAN, machines_own
from tests.servers.private import find_program
from tests.soak.runs import SoakRun
from tests.soak.schedule import ALTERATIONS
from tests.soak.topologies import network
from tests.soak.topologies.choice import TOPOLOGIES
from tests.soak.topologies.cluster import Cluster
from tests.soak.topologies.several_databases import Databases

DRIVERS = {"mariadb": "MySQLdb", "mysql": "MySQLdb", "postgresql": "psycopg"}
RATES = ("--rate=10", "--bulk-rate=40")


def missing(name: str) -> str:
    """Say what a topology lacks on this machine; "" if nothing."""
    kind = TOPOLOGIES[name]
    if kind is not Databases and find_program("haproxy") is None:
        return "there is no haproxy (make system-topologies)"
    if find_spec(DRIVERS[kind.database]) is None:
        return f"there is no driver for {kind.database}"
    if issubclass(kind, Cluster) and (reason := network.impossible()):
        return reason
    if name.startswith("galera"):
        return galera.missing_for_several()
    if kind.database == "mysql":
        there = machines_own() or (DEBIAN / "usr/sbin/mysqld").is_file()
        return "" if there else "there is no MySQL server (make system-mysql)"
    if kind.database == "postgresql":
        there = any(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or find_program("initdb")
        return "" if there else "there is no PostgreSQL server (make system-postgresql)"
    return "" if find_program("mariadbd") else "there is no MariaDB server (make system)"


@pytest.mark.long
@pytest.mark.once
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_the_database_keeps_through_its_failovers_is_delivered(name: str, tmp_path: Path) -> None:
    if reason := missing(name):
        pytest.skip(reason)
    faults = [f"--only={kind.name}" for kind in (*TOPOLOGIES[name].kinds, *ALTERATIONS)]
    with SoakRun(tmp_path, f"--topology={name}", "--minutes=1", "--seed=1", *RATES, *faults) as run:
        status = run.wait(850)
    assert status == 0, run.output
    assert run.report["messages committed"] > 100
    assert run.report["longest until a handler began, by fault (s)"], "no node was harmed"
