"""The check for django-health-check, run by that package's own view."""

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.urls import path
from health_check.views import HealthCheckView

from tests.api.asking import GROUP, TOPIC

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.urls(__name__)]
CHECKS = ["sqlqueue.api.health_check.QueueHealth"]
urlpatterns = [path("checks/", HealthCheckView.as_view(checks=CHECKS))]


def said() -> tuple[int, str]:
    answer = Client().get("/checks/?format=json")
    (text,) = answer.json().values()
    return answer.status_code, text


def test_a_queue_that_is_well(backlog) -> None:
    assert said() == (200, "OK")


def test_a_limit_that_is_passed(backlog, options) -> None:
    options(HEALTH={"max_lag": 1})
    status, text = said()
    assert (status, "a limit of the queue's health is passed" in text) == (500, True)
    assert TOPIC not in text
    assert GROUP not in text


def test_tables_that_are_not_up_to_date(options) -> None:
    recorder = MigrationRecorder(connection)
    name = max(name for app, name in recorder.applied_migrations() if app == "sqlqueue")
    recorder.record_unapplied("sqlqueue", name)
    try:
        status, text = said()
    finally:
        recorder.record_applied("sqlqueue", name)
    assert (status, "lacks migrations" in text) == (500, True)
