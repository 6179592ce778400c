"""The statements of the RFC that sqlqueue began with, in plain Python with mysqlclient: what its first design costs.

One process has a thread for each message that it handles at a time, each with a connection and a share of 16
partitions. A thread goes on at once as long as it finds messages, and else waits for the RFC's poll interval. Run as a
module it is the worker.
"""

import json
import os
import signal
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import django
import environ
import MySQLdb

from tests.benchmarks.peers.adapter import CONCURRENCY, Adapter, comes_back, python
from tests.benchmarks.peers.handling import handle, message

PARTITIONS = 16
BATCH = 10
POLL_INTERVAL = 0.1
LEASE_DURATION = VISIBILITY_TIMEOUT = int(1000 * comes_back(30))  # milliseconds
LEASE_RENEWAL = LEASE_DURATION // 3
GROUP, TOPIC = "peers", "work"
TABLES = """
CREATE TABLE IF NOT EXISTS queue_messages (
    `offset` BIGINT AUTO_INCREMENT PRIMARY KEY, topic VARCHAR(255) NOT NULL, partition_key VARCHAR(255) NOT NULL,
    id VARCHAR(255) NOT NULL, payload BLOB NOT NULL, created_at BIGINT NOT NULL,
    UNIQUE KEY idempotent (topic, partition_key, id), KEY poll (topic, partition_key, `offset`)) CHARSET ascii;
CREATE TABLE IF NOT EXISTS queue_delivery_state (
    consumer_group VARCHAR(255), topic VARCHAR(255), partition_key VARCHAR(255), message_offset BIGINT,
    acked BOOLEAN NOT NULL, invisible_until BIGINT NOT NULL, retry_count INT NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition_key, message_offset)) CHARSET ascii;
CREATE TABLE IF NOT EXISTS queue_offsets (
    consumer_group VARCHAR(255), topic VARCHAR(255), partition_key VARCHAR(255), offset_acked BIGINT NOT NULL,
    PRIMARY KEY (consumer_group, topic, partition_key)) CHARSET ascii;
CREATE TABLE IF NOT EXISTS queue_partition_leases (
    consumer_group VARCHAR(255), topic VARCHAR(255), partition_key VARCHAR(255), leased_by VARCHAR(255) NOT NULL,
    lease_renewed_at BIGINT NOT NULL, PRIMARY KEY (consumer_group, topic, partition_key)) CHARSET ascii
"""
PUBLISH = "INSERT INTO queue_messages (topic, partition_key, id, payload, created_at) VALUES (%s, %s, %s, %s, %s)"
LEASE = (
    "INSERT INTO queue_partition_leases VALUES (%s, %s, %s, %s, %s) ON DUPLICATE KEY UPDATE"
    " leased_by = IF(leased_by = VALUES(leased_by) OR lease_renewed_at < %s, VALUES(leased_by), leased_by),"
    " lease_renewed_at = IF(leased_by = VALUES(leased_by), VALUES(lease_renewed_at), lease_renewed_at)"
)
LEASED = "SELECT leased_by FROM queue_partition_leases WHERE consumer_group = %s AND topic = %s AND partition_key = %s"
RELEASE = "UPDATE queue_partition_leases SET lease_renewed_at = 0 WHERE leased_by = %s"
WATERMARK = "SELECT offset_acked FROM queue_offsets WHERE consumer_group = %s AND topic = %s AND partition_key = %s"
FETCH = (
    "SELECT `offset`, payload FROM queue_messages WHERE topic = %s AND partition_key = %s AND `offset` > %s"
    " ORDER BY `offset` LIMIT %s"
)
OFFSETS = (
    "SELECT `offset` FROM queue_messages WHERE topic = %s AND partition_key = %s AND `offset` > %s"
    " ORDER BY `offset` LIMIT 100"
)
STATES = (
    "SELECT message_offset, acked FROM queue_delivery_state"
    " WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset IN %s"
)
ADVANCE = (
    "INSERT INTO queue_offsets VALUES (%s, %s, %s, %s) ON DUPLICATE KEY UPDATE offset_acked = VALUES(offset_acked)"
)
CLEAN = (
    "DELETE FROM queue_delivery_state"
    " WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset <= %s"
)
STATE = (
    "SELECT acked, invisible_until FROM queue_delivery_state"
    " WHERE consumer_group = %s AND topic = %s AND partition_key = %s AND message_offset = %s"
)
DELIVERED = (
    "INSERT INTO queue_delivery_state VALUES (%s, %s, %s, %s, FALSE, %s, 0) ON DUPLICATE KEY UPDATE"
    " invisible_until = IF(acked, invisible_until, VALUES(invisible_until)),"
    " retry_count = retry_count + IF(acked, 0, 1)"
)
ACKED = "INSERT INTO queue_delivery_state VALUES (%s, %s, %s, %s, TRUE, 0, 0) ON DUPLICATE KEY UPDATE acked = TRUE"


def connect() -> Any:
    url = environ.Env.db_url_config(os.environ["DATABASE_URL"])
    return MySQLdb.connect(
        host=url["HOST"], port=url["PORT"], user=url["USER"], database=url["NAME"], charset="utf8mb4", autocommit=True
    )


class RFC(Adapter):
    distribution = "mysqlclient"
    server = "mariadb"
    setup = f"one process of {CONCURRENCY} threads, 16 partitions, batches of {BATCH}, leases and visibility of 30 s"

    @property
    def version(self) -> str:
        return f"mysqlclient {super().version}"

    def prepare(self) -> None:
        super().prepare()
        with connect().cursor() as cursor:
            for statement in TABLES.split(";"):
                cursor.execute(statement)
        self.connection = connect()

    def workers(self) -> list[Sequence[str]]:
        return [python(__name__)]

    def enqueue(self, kind: str, number: int) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(PUBLISH, row(kind, number))

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(PUBLISH, [row(kind, number) for number in numbers])

    def enqueue_in_transaction(self, kind: str, number: int) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute("BEGIN")
            insert = "INSERT INTO peers_written (number, text, created) VALUES (%s, 'ordered', now())"
            cursor.execute(insert, (number,))
            cursor.execute(PUBLISH, row(kind, number))
            cursor.execute("COMMIT")


def row(kind: str, number: int) -> tuple[object, ...]:
    return TOPIC, f"p{number % PARTITIONS}", str(number), json.dumps(message(kind, number)), now()


def now() -> int:
    return int(time.time() * 1000)


class PartitionWorker:
    """Handles one partition as long as it holds the lease."""

    def __init__(self, cursor: Any, partition: str, name: str) -> None:
        self.cursor, self.place, self.name = cursor, (GROUP, TOPIC, partition), name
        self.renewed, self.holds, self.watermark = 0, False, 0

    def work(self) -> int:
        """Handle a batch; return how many messages it had."""
        if now() >= self.renewed + (LEASE_RENEWAL if self.holds else 1000):
            self.lease()
        if not self.holds:
            return 0
        self.advance()
        self.cursor.execute(FETCH, (*self.place[1:], self.watermark, BATCH))
        return sum([self.deliver(offset, payload) for offset, payload in self.cursor.fetchall()])

    def lease(self) -> None:
        self.renewed = now()
        self.cursor.execute(LEASE, (*self.place, self.name, self.renewed, self.renewed - LEASE_DURATION))
        self.cursor.execute(LEASED, self.place)
        held, self.holds = self.holds, self.cursor.fetchone()[0] == self.name
        if self.holds and not held:
            self.cursor.execute(WATERMARK, self.place)
            found = self.cursor.fetchone()
            self.watermark = found[0] if found else 0

    def deliver(self, offset: int, payload: bytes) -> bool:
        self.cursor.execute(STATE, (*self.place, offset))
        found = self.cursor.fetchone()
        if found and (found[0] or found[1] > now()):
            return False
        self.cursor.execute(DELIVERED, (*self.place, offset, now() + VISIBILITY_TIMEOUT))
        handle(*json.loads(payload))
        self.cursor.execute(ACKED, (*self.place, offset))
        return True

    def advance(self) -> None:
        """Move the watermark over what is contiguously acked."""
        self.cursor.execute(OFFSETS, (*self.place[1:], self.watermark))
        offsets = [offset for (offset,) in self.cursor.fetchall()]
        if not offsets:
            return
        self.cursor.execute(STATES, (*self.place, offsets))
        acked = {offset for offset, done in self.cursor.fetchall() if done}
        reached = self.watermark
        for offset in offsets:
            if offset not in acked:
                break
            reached = offset
        if reached > self.watermark:
            self.watermark = reached
            self.cursor.execute(ADVANCE, (*self.place, reached))
            self.cursor.execute(CLEAN, (*self.place, reached))


def run(share: int, name: str) -> None:
    """Work off every fourth partition for ever."""
    cursor = connect().cursor()
    workers = [PartitionWorker(cursor, f"p{number}", name) for number in range(share, PARTITIONS, CONCURRENCY)]
    while True:
        if not sum([worker.work() for worker in workers]):
            time.sleep(POLL_INTERVAL)


if __name__ == "__main__":
    django.setup()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # before threads inherit the mask
    worker_name = f"{socket.gethostname()}-{os.getpid()}"
    for number in range(CONCURRENCY):
        threading.Thread(target=run, args=(number, worker_name), daemon=True).start()
    signal.sigwait({signal.SIGTERM})
    connect().cursor().execute(RELEASE, (worker_name,))
