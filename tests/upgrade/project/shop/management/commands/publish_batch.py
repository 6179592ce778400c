"""Publishes a batch of topic "spread", one member of each key, and waits for its end."""

import time
from typing import Any

from django.core.management import BaseCommand, CommandParser

from sqlqueue import Batch, NewMessage, get_batch


class Command(BaseCommand):
    """Says how many members there are, and at the end how many are done."""

    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("members", type=int)

    def handle(self, *args: Any, name: str, members: int, **options: Any) -> None:
        keys = [f"{name}{number}" for number in range(members)]
        with Batch() as batch:
            found = batch.publish_many("spread", [NewMessage(1, key=key, id=f"{key}-0") for key in keys])
        self.stdout.write(f"published {found.created}")
        while (status := get_batch(batch.id)) is None or status.finished_at is None:
            time.sleep(0.1)
        self.stdout.write(f"{status.state}: {status.done} of {status.total}")
