"""The tests' project with handlers of its own, for processes that run them. QUEUE_OPTIONS (JSON) adds to SQLQUEUE."""

import json

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS
from tests.settings import env

INSTALLED_APPS = [*APPS, "tests.management"]
SQLQUEUE = {"CONSUMERS_MODULE": "handlers", "PARTITIONS": 4, **json.loads(env.str("QUEUE_OPTIONS", default="{}"))}
if "LOGGING" in env:
    LOGGING = json.loads(env.str("LOGGING"))
