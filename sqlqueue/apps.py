"""The Django app of sqlqueue."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate, pre_migrate
from django.utils.translation import gettext_lazy as _


class SqlqueueConfig(AppConfig):
    """Registers system checks, signal receivers and the filling of the publish gate. Opens no connection and no
    port."""

    name = "sqlqueue"
    label = "sqlqueue"
    verbose_name = _("Message queue")
    default_auto_field = "django.db.models.BigAutoField"
    beside_the_log = True  # its tables are on the queue's databases

    def ready(self) -> None:
        """Connect the receivers and register the checks."""
        from sqlqueue.checks import configuration, databases  # noqa: F401  the import registers them
        from sqlqueue.consumers.declare import relays
        from sqlqueue.consumers.declare.registry import registry
        from sqlqueue.database.tables import refuse_development_version
        from sqlqueue.monitoring import logs
        from sqlqueue.tasks import queues

        logs.connect()
        relays.connect(registry)
        queues.connect()
        if find_spec("prometheus_client") is not None:
            from sqlqueue.monitoring import metrics

            metrics.connect()
        pre_migrate.connect(refuse_development_version, sender=self, dispatch_uid="sqlqueue.development")
        post_migrate.connect(prepare, sender=self, dispatch_uid="sqlqueue.gate")


def prepare(using: str, **kwargs: Any) -> None:
    """Forget the cached topics, and once all migrations are applied fill the publish gate, and raise the log's sequence
    above all known offsets. Runs after every `migrate` and `flush`."""
    from django.db import router

    from sqlqueue.database.log import Log
    from sqlqueue.database.sequence import catch_up
    from sqlqueue.database.tables import pending_migrations
    from sqlqueue.log.topics import forget_topics
    from sqlqueue.models import PublishGate
    from sqlqueue.models.publish_gate import fill

    forget_topics()

    log = Log.of(using)
    here = router.allow_migrate_model(using, PublishGate)
    present = here and PublishGate._meta.db_table in log.connection.introspection.table_names()
    if present and not pending_migrations(log, "sqlqueue"):  # else the next migrate does it
        fill(log)
        catch_up(log)
