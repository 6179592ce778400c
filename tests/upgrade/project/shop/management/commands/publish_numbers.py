"""Publishes the numbered messages of its own keys, one after another, until SIGTERM."""

import itertools
import json
import signal
import time
from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandParser
from django.db import transaction

from sqlqueue import publish

KEYS = 6
PAUSE = 0.1  # seconds


class Command(BaseCommand):
    """numbers: a file with the next number of each key, which belongs to one publisher at a time. A message whose
    number is there was committed; one more may have been. Ends with the error of the first publish that fails."""

    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("numbers", type=Path)

    def handle(self, *args: Any, name: str, numbers: Path, **options: Any) -> None:
        stopping: list[int] = []
        signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
        nexts = json.loads(numbers.read_text()) if numbers.exists() else {}
        for turn in itertools.count():
            if stopping:
                return
            keys = {f"{name}{(turn + further) % KEYS}" for further in range(1 + turn % 2)}
            with transaction.atomic():
                for key in sorted(keys):
                    publish("orders", {"turn": turn}, key=key, id=f"{key}-{nexts.get(key, 0)}")
            for key in keys:
                nexts[key] = nexts.get(key, 0) + 1
            written = numbers.with_suffix(".new")
            written.write_text(json.dumps(nexts))
            written.replace(numbers)
            if turn == 0:
                self.stdout.write("publishes")
            time.sleep(PAUSE)
