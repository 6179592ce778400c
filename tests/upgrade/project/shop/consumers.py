"""Notes each message: which side has handled it, its id."""

import os

from sqlqueue import Delivery, consumer


@consumer("orders", backoff=0.1, jitter=0)
def handle(delivery: Delivery) -> None:
    """Append a line; lines of several processes do not mix."""
    file = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, f"{os.environ['SIDE']} {delivery.id}\n".encode())
    finally:
        os.close(file)
