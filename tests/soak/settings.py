"""Settings of the processes of a soak run. DATABASE_URL names the database, SQLQUEUE the options."""

import os
import select
import time

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS
from tests.soak.workload import QUEUE

for options in DATABASES.values():
    options["CONN_MAX_AGE"] = 600
    options["CONN_HEALTH_CHECKS"] = True  # as the doctor wants it where the server ends idle connections
INSTALLED_APPS = [*INSTALLED_APPS, "tests.soak"]
TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend", "QUEUES": [QUEUE]}}

if "FAKETIME_DONT_FAKE_MONOTONIC" in os.environ:
    # libfaketime 0.9.10 refuses clock_nanosleep() on the clock that it was told to leave alone.
    time.sleep = lambda seconds: select.select([], [], [], seconds)
