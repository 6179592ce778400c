"""The app's tables are where the queue's are, and are missed as those."""

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import override_settings

from sqlqueue.checks.databases import check_routers
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.database.router import Router
from sqlqueue.database.tables import labels, pending_migrations
from tests.logs import LOG
from tests.test_checks import Elsewhere


def test_the_router_keeps_them_on_the_queues_databases() -> None:
    router = Router()
    assert {"sqlqueue", "sqlqueue_people"} <= set(labels())
    assert (router.db_for_write(WorkItem), router.db_for_read(User)) == ("default", None)
    assert [router.allow_migrate(alias, "sqlqueue_people") for alias in ("default", "elsewhere")] == [True, False]
    assert router.allow_migrate("default", "auth") is None


@pytest.mark.once
def test_models_that_are_routed_elsewhere_are_an_error() -> None:
    with override_settings(DATABASE_ROUTERS=[Elsewhere("sqlqueue_people")]):
        assert [found.id for found in check_routers() if "WorkItem" in found.msg] == ["sqlqueue.E022"]


@pytest.mark.django_db
def test_a_migration_of_the_app_that_is_missing_is_pending() -> None:
    assert not pending_migrations(LOG)
    MigrationRecorder(connection).record_unapplied("sqlqueue_people", "0001_initial")
    assert pending_migrations(LOG)
    assert not pending_migrations(LOG, "sqlqueue")
