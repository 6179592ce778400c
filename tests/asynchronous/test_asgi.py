"""Async views under a real ASGI server publish and receive, and leave no connection behind."""

import json
import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, build_opener

import pytest
from django.db import connection

from sqlqueue.models import Message, PartitionLease
from tests.app.models import Effect
from tests.consuming import QUICK
from tests.processes import ManageCommand, wait_until
from tests.servers.processlist import sessions

SCRIPT = Path(__file__).with_name("asgi_site.py")
REQUESTS = 40


class Site:
    """The site in a process of its own."""

    def __init__(self, process: ManageCommand) -> None:
        self.pid = process.pid
        self.port = int(process.wait_for_line(r"running on http://127\.0\.0\.1:(\d+)")[1])
        self._open = build_opener(ProxyHandler({})).open

    def get(self, path: str) -> Any:
        try:
            with self._open(f"http://127.0.0.1:{self.port}/{path}", timeout=60) as answer:
                return json.load(answer)
        except HTTPError as error:
            raise AssertionError(error.read().decode()[:2000]) from None

    def connections(self, database_name: str) -> int:
        """Return how many connections to the database it has open."""
        if os.environ.get("POOLER"):  # whose sessions stay
            return self._clients()
        if database_name != "sqlite":
            return len(sessions().others())
        files = Path(f"/proc/{self.pid}/fd").iterdir()
        return sum(os.readlink(file).endswith(".sqlite3") for file in files if file.is_symlink())

    def _clients(self) -> int:
        """Count its TCP connections to the database's port: proc_pid_net(5), established is 01."""
        files = {os.readlink(file) for file in Path(f"/proc/{self.pid}/fd").iterdir() if file.is_symlink()}
        rows = [row.split() for row in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        port = f":{int(connection.settings_dict['PORT']):04X}"
        return sum(row[2].endswith(port) and row[3] == "01" and f"socket:[{row[9]}]" in files for row in rows)


@pytest.fixture
def site(transactional_db: None, tmp_path: Path, settings) -> Iterator[Site]:
    settings.SQLQUEUE = QUICK
    process = ManageCommand(output=tmp_path / "uvicorn", env={"SQLQUEUE": json.dumps(QUICK)}, script=SCRIPT)
    try:
        yield Site(process)
    finally:
        process.end()


def payloads() -> list[Any]:
    return list(Message.objects.filter(topic="web").order_by("offset").values_list("payload", flat=True))


def test_async_views_publish_and_receive_and_leave_no_connection(site: Site, database_name: str) -> None:
    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda n: site.get(f"place/?number={n % 30}"), range(REQUESTS)))
    assert sum(answer["created"] for answer in answers) == 30
    assert sorted(payloads()) == list(range(30))
    assert Effect.objects.count() == REQUESTS

    assert site.get("together/") == {"created": 10}
    site.get("in_a_transaction/?number=100")
    site.get("in_a_transaction/?number=101&fails=yes")
    assert payloads()[-1] == 100
    assert not Effect.objects.filter(value="101").exists()
    assert "await apublish(…)" in site.get("wrong/")["error"]
    assert "wrong" not in payloads()

    with ThreadPoolExecutor(2) as clients:
        taken = list(clients.map(lambda group: site.get(f"take/?count=41&group={group}")["payloads"], ["a", "b"]))
    assert [sorted(each) for each in taken] == [sorted(payloads())] * 2
    assert PartitionLease.objects.exclude(holder="").count() == 0

    wait_until(lambda: site.connections(database_name) == 0, 30, lambda: str(site.connections(database_name)))


def test_a_client_that_goes_away_cancels_the_view_and_what_was_published_stays(site: Site, database_name: str) -> None:
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        client.sendall(b"GET /slow/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: payloads() == ["before"])
    wait_until(lambda: payloads() == ["before", "its client is gone"])
    wait_until(lambda: site.connections(database_name) == 0, 30, lambda: str(site.connections(database_name)))
