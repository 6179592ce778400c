"""The tests' project with the queue's router, and handlers of its own."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [*APPS, "tests.management"]
DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]
