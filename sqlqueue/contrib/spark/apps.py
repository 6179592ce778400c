"""The Django app of the log as data."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class SparkConfig(AppConfig):
    """Has the tables of the archive and of the analytics, and the commands. Opens no connection."""

    name = "sqlqueue.contrib.spark"
    label = "sqlqueue_spark"
    verbose_name = _("Log as data")
    default_auto_field = "django.db.models.BigAutoField"
    beside_the_log = True  # its tables are on the queue's databases
    offset_columns = (("sqlqueue_archive_segment", "last_offset", " WHERE kind = 'messages'"),)  # see sequence.look
