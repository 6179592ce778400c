"""What consumer processes of the benchmarks run."""

import os
import time
from pathlib import Path

from sqlqueue import consumer


@consumer("delayed")
def note_lateness(delivery) -> None:
    """Write down by how many seconds it comes after its due time."""
    late = time.time() - delivery.payload["due"]
    with Path(os.environ["LATENESS_FILE"]).open("a") as file:
        file.write(f"{delivery.payload['kind']} {late}\n")
