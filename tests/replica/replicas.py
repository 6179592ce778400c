"""What the tests of replicas ask: which statements on the queue's tables went to which database."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connections
from django.test.utils import CaptureQueriesContext

REPLICA = "replica"


class Asked:
    """How many statements on the queue's tables went to the queue's own database, and to the replica."""

    primary = replica = 0

    def __repr__(self) -> str:
        return f"primary {self.primary}, replica {self.replica}"


@contextmanager
def asked() -> Iterator[Asked]:
    """Count within the block; the counts are there after it."""
    counts = Asked()
    with (
        CaptureQueriesContext(connections["default"]) as primary,
        CaptureQueriesContext(connections[REPLICA]) as replica,
    ):
        yield counts
    counts.primary, counts.replica = (_on_tables(one) for one in (primary, replica))


def _on_tables(found: CaptureQueriesContext) -> int:
    # Not the admin's own, of the user's permissions and of Django's log, which name the models.
    return sum("sqlqueue_" in one["sql"] and "django_" not in one["sql"] for one in found.captured_queries)
