"""A check for django-health-check (4.8 or later), where that is installed.

Name it in that package's view: `HealthCheckView.as_view(checks=["sqlqueue.api.health_check.QueueHealth"])`.
"""

from __future__ import annotations

import dataclasses

from django.db import connections
from health_check.base import HealthCheck
from health_check.exceptions import ServiceUnavailable, ServiceWarning

from sqlqueue.monitoring import responses


@dataclasses.dataclass
class QueueHealth(HealthCheck):  # type: ignore[misc]  # that package has no types
    """Checks that the queue's database answers, its migrations are applied, and no limit of SQLQUEUE['HEALTH'] is
    passed."""

    def run(self) -> None:
        """Run the check. Errors name no topics or groups, since that page does not check the permission to see them.

        The package runs it in a thread, whose connections it closes.
        Raises ServiceUnavailable if the queue cannot be used, ServiceWarning if a limit is passed.
        """
        try:
            if responses.ready(detailed=False).status != 200:
                raise ServiceUnavailable("the queue's database does not answer, or lacks migrations")
            if responses.health(detailed=False).status != 200:
                raise ServiceWarning("a limit of the queue's health is passed")
        finally:
            connections.close_all()
