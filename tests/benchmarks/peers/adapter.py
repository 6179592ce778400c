"""The shape of a peer: what each adapter says and does, in the producer's process."""

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from typing import ClassVar

CONCURRENCY = 4  # messages that a peer's worker handles at a time
SOON = 6  # seconds
KINDS = ("noop", "sleep", "write")


class Adapter(ABC):
    """One peer, set up as its documentation advises. Handlers are tests.benchmarks.peers.handling.handle()."""

    distribution: ClassVar[str]
    server: ClassVar[str] = "postgresql"  # where its queue lives: postgresql, mariadb, redis or sqlite
    setup: ClassVar[str]  # what runs, and each setting that is not the default
    transactional: ClassVar[bool] = True  # whether a message is sent if and only if the caller's transaction commits
    kinds: ClassVar[tuple[str, ...]] = KINDS
    has_bulk: ClassVar[bool] = True

    @property
    def version(self) -> str:
        return version(self.distribution)

    def prepare(self) -> None:
        """Make the tables, once."""
        from django.core.management import call_command

        call_command("migrate", run_syncdb=True, verbosity=0)

    @abstractmethod
    def workers(self) -> list[Sequence[str]]:
        """Return the commands that together handle CONCURRENCY messages at a time."""

    @abstractmethod
    def enqueue(self, kind: str, number: int) -> None:
        """Send one message."""

    def enqueue_many(self, kind: str, numbers: Sequence[int]) -> None:
        """Send messages in bulk, where has_bulk says that it can."""
        raise NotImplementedError

    def enqueue_in_transaction(self, kind: str, number: int) -> None:
        """Write a row and send a message, in one transaction, or right after it where the queue is elsewhere."""
        from django.db import transaction

        from tests.benchmarks.peers.models import Written

        with transaction.atomic():
            Written.objects.create(number=number, text="ordered")
            if self.transactional:
                self.enqueue(kind, number)
            else:
                transaction.on_commit(lambda: self.enqueue(kind, number))


def comes_back(default: float) -> float:
    """Return after how many seconds a dead worker's messages come back: SOON where workers are killed, or else the
    peer's default."""
    return SOON if "PEERS_KILLED" in os.environ else default


def python(*words: str) -> list[str]:
    """Return the command of a module in this environment: python("django", "db_worker")."""
    return [sys.executable, "-m", *words]
