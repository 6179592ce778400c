"""The Django app."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate
from django.utils.translation import gettext_lazy as _


class SqlqueueConfig(AppConfig):
    """Registers the checks and the filling of the publish gate. Opens nothing, asks nothing."""

    name = "sqlqueue"
    label = "sqlqueue"
    verbose_name = _("Message queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Connect what waits for Django's own signals."""
        from sqlqueue import checks  # noqa: F401  registers them
        from sqlqueue.observe import logs

        logs.connect()
        if find_spec("prometheus_client") is not None:
            from sqlqueue.observe import metrics

            metrics.connect()
        post_migrate.connect(prepare, sender=self, dispatch_uid="sqlqueue.gate")


def prepare(using: str, **kwargs: Any) -> None:
    """Fill the gate, see that no offset is handed out again, and forget the known topics: after every `migrate`, and
    after a `flush` has emptied the tables."""
    from django.db import connections, router

    from sqlqueue.database.sequence import catch_up
    from sqlqueue.log.topics import forget_topics
    from sqlqueue.models import PublishGate
    from sqlqueue.models.publish_gate import fill

    forget_topics()

    if router.allow_migrate_model(using, PublishGate) and (
        PublishGate._meta.db_table in connections[using].introspection.table_names()
    ):
        fill(using)
        catch_up(using)
