"""What the admin's pages about the fleet cost."""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.benchmarks.admin import rows_read

VISITS = 3
PAGES = {
    "overview": "/admin/sqlqueue/overview/",
    "leases": "/admin/sqlqueue/partitionlease/",
    "subscribers": "/admin/sqlqueue/subscriberheartbeat/",
    "groups": "/admin/sqlqueue/consumergroup/",
}


def measured() -> Iterator[tuple[str, int, int, float, int]]:
    """Yield each page with its statements, the rows that are read, milliseconds (the middle one of three), and
    bytes."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client

    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    for name, address in PAGES.items():
        before = rows_read()
        statements: list[str] = []

        def counted(execute: Callable[..., Any], sql: str, *rest: Any) -> Any:
            statements.append(sql)  # noqa: B023  run in this iteration
            return execute(sql, *rest)

        with connection.execute_wrapper(counted):
            answer = client.get(address)
        read = rows_read() - before
        assert answer.status_code == 200, (name, answer.status_code)
        times = []
        for _ in range(VISITS):
            began = time.perf_counter()
            client.get(address)
            times.append(time.perf_counter() - began)
        yield name, len(statements), read, statistics.median(times) * 1000, len(answer.content)
