"""The backends of the tests, and the tasks: each is checked against its backend when its module is imported."""

from typing import Any

from django.test import override_settings

DEFAULT: dict[str, Any] = {
    "BACKEND": "sqlqueue.tasks.SqlQueueBackend",
    "QUEUES": ["default", "special"],
    "OPTIONS": {},
}
RETRYING: dict[str, Any] = {**DEFAULT, "OPTIONS": {"max_attempts": 3, "backoff": 0, "jitter": 0}}
TASKS = {"default": DEFAULT, "retrying": RETRYING}
QUICK = {"PARTITIONS": 2, "WAKE": False}

with override_settings(TASKS=TASKS):
    from tests.tasks import samples

__all__ = ["DEFAULT", "QUICK", "RETRYING", "TASKS", "samples"]
