"""The parts of a topology: what haproxy is told, what the Makefile knows, how long a fault stopped everything."""

from __future__ import annotations

import re
import socket
from contextlib import closing
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.servers.private import find_program
from tests.soak.records import Fault, Handling, Record
from tests.soak.report import longest_pauses
from tests.soak.schedule import schedule
from tests.soak.topologies import group_replication
from tests.soak.topologies.choice import TOPOLOGIES
from tests.soak.topologies.haproxy import HAProxy, configuration
from tests.soak.topologies.network import Network

pytestmark = pytest.mark.once


def test_the_configuration_lets_clients_through_to_no_node_by_itself() -> None:
    text = configuration(4000, Path("/tmp/control"), {"a": "127.0.0.1:1", "b": "127.0.0.1:2 namespace n"})
    assert "    bind 127.0.0.1:4000\n" in text
    assert re.findall(r"^    server .*$", text, re.MULTILINE) == [
        "    server a 127.0.0.1:1 disabled",
        "    server b 127.0.0.1:2 namespace n disabled",
    ]
    assert "on-marked-down shutdown-sessions" in text


@pytest.mark.skipif(find_program("haproxy") is None, reason="there is no haproxy (make system-topologies)")
def test_clients_reach_the_chosen_node_alone_and_lose_their_connection_when_another_is_chosen(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as a, socket.create_server(("127.0.0.1", 0)) as b:
        nodes = {name: f"127.0.0.1:{listener.getsockname()[1]}" for name, listener in (("a", a), ("b", b))}
        haproxy = HAProxy(tmp_path, nodes)
        haproxy.start()
        try:
            assert refused(haproxy.port)
            for listener, name, other in ((a, "a", "b"), (b, "b", "a")):
                haproxy.route(name)
                with closing(socket.create_connection(("127.0.0.1", haproxy.port), 10)) as client:
                    server, _ = listener.accept()
                    with closing(server):
                        client.sendall(b"?")
                        assert server.recv(1) == b"?"
                        haproxy.route(other)
                        assert ended(client)
            haproxy.route(None)
            assert refused(haproxy.port)
        finally:
            haproxy.close()


def refused(port: int) -> bool:
    """Tell whether a connection is closed without a word."""
    with closing(socket.create_connection(("127.0.0.1", port), 10)) as client:
        return ended(client)


def ended(client: socket.socket) -> bool:
    """Wait until the other end closes a connection; it says nothing before."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_make_knows_the_database_of_each_topology() -> None:
    known = re.findall(r"^DATABASE_(\S+) := (\w+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert dict(known) == {name: kind.database for name, kind in TOPOLOGIES.items()}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_the_faults_of_a_topology_take_the_place_of_a_servers(name: str) -> None:
    kind = TOPOLOGIES[name]
    _, of_nodes, _ = schedule(1, 600, kind.database, of_nodes=kind.kinds)
    assert {fault.kind for fault in of_nodes} == {each.name for each in kind.kinds}


def test_a_node_of_group_replication_talks_to_all_within_the_network_alone() -> None:
    network = Network(group_replication.NODES)
    words = group_replication.options(network, "b")
    assert "--group-replication-local-address=10.77.0.2:33061" in words
    assert "--group-replication-group-seeds=10.77.0.1:33061,10.77.0.2:33061,10.77.0.3:33061" in words
    assert "--group-replication-ip-allowlist=10.77.0.0/24" in words
    assert "--server-id=2" in words


def test_a_pause_counts_from_a_faults_beginning_to_the_first_handler_after_its_end() -> None:
    moments = [0.0, 1.0, 9.0, 10.0, 30.0, 31.0]
    handlings = [Handling("t", "g", 0, n, f"m{n}", 1, 1, at) for n, at in enumerate(moments)]
    record = Record(handlings=handlings, faults=[Fault("kill", 1.5, 2.0, None), Fault("join", 11.0, 12.0, None)])
    assert longest_pauses(record, {"kill"}) == {"kill": 7.5}
    assert longest_pauses(record, {"join"}) == {"join": 19.0}
    assert longest_pauses(Record(faults=record.faults), {"kill"}) == {"kill": 0.0}
    lasting = Record(handlings=handlings, faults=[Fault("kill", 0.5, 20.0, None)])
    assert longest_pauses(lasting, {"kill"}) == {"kill": 20.0}
