"""Topics: named logs, and their options."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, TOPIC_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField

TOPIC_COLUMN = TOPIC_LENGTH + len(DEAD_LETTER_SUFFIX)
DATABASES_COLUMN = 2000


class Topic(models.Model):
    """Created on first use from the settings. The number of partitions never changes: it is the first epoch's. Nor
    do the databases that it is on.

    `retention` and `history` are the values in force. At each start of `runconsumers` they are set from the settings,
    except those that an operator has overridden.

    Registration, moves and removal of a group and collection lock this row: only they let a watermark fall, so the
    watermarks that a collector reads under the lock hold.
    """

    name = ExactField(_("name"), max_length=TOPIC_COLUMN, primary_key=True)
    partitions = models.IntegerField(_("partitions"))
    priorities = models.IntegerField(_("priorities"), db_default=1)
    retention = models.FloatField(_("retention"), null=True, help_text=_("seconds; empty: for ever"))
    history = ExactField(_("history"), max_length=10, db_default="failures")
    retention_overridden = models.BooleanField(_("retention overridden"), db_default=False)
    history_overridden = models.BooleanField(_("history overridden"), db_default=False)
    paused = models.BooleanField(_("paused"), db_default=False)
    purged_to = models.BigIntegerField(
        _("purged to"), db_default=0, help_text=_("up to this offset nothing is retained that no group needs")
    )
    collected_to = models.BigIntegerField(
        _("collected to"), db_default=0, help_text=_("the highest offset that was collected")
    )
    databases = ExactField(
        _("databases"),
        max_length=DATABASES_COLUMN,
        db_default="",
        help_text=_("over which its keys are spread; empty: this one alone"),
    )
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_topic"
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        permissions = [("pause_topic", "Can pause and resume topics"), ("purge_topic", "Can purge topics")]

    def __str__(self) -> str:
        return self.name

    @property
    def overridden(self) -> tuple[str, ...]:
        """The names of the options that an operator has overridden."""
        flags = {"retention": self.retention_overridden, "history": self.history_overridden}
        return tuple(option for option, overridden in flags.items() if overridden)
