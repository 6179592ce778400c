"""The tests' project with the handlers of the benchmarks, for processes that run them."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "tests.benchmarks"]
SQLQUEUE = {
    "CONSUMERS_MODULE": "handlers",
    "PARTITIONS": 16,
    "STRICT_TOPICS": False,
}
