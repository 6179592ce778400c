"""A check for django-health-check (4.8 or later), where that is installed.

Name it in its view: `HealthCheckView.as_view(checks=["sqlqueue.api.health_check.QueueHealth"])`.
"""

from __future__ import annotations

import dataclasses

from django.db import connections
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from sqlqueue.observe import answers


@dataclasses.dataclass
class QueueHealth(HealthCheck):  # type: ignore[misc]  # that package has no types
    """The queue's database answers, its migrations are applied, and no limit of SQLQUEUE['HEALTH'] is passed."""

    def run(self) -> None:
        """Raise what is wrong. No names: whoever may open that page may not be one who may see them. It waits for the
        database, so it is run in a thread, whose connections it closes."""
        try:
            if answers.ready(detailed=False).status != 200:
                raise ServiceUnavailable("the queue's database does not answer, or lacks migrations")
            if answers.health(detailed=False).status != 200:
                raise ServiceWarning("a limit of the queue's health is passed")
        finally:
            connections.close_all()
