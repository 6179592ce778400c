"""The audit trail of work items."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.contrib.people.models.work_item import USER_LENGTH, WorkItem
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeTextField

ASSIGNED, RELEASED, DEFERRED, COMMENTED = "assigned", "released", "deferred", "commented"
SUBMITTED, SENT_BACK, APPROVED, FINISHED = "submitted", "sent back", "approved", "done"
KINDS = [
    (ASSIGNED, _("assigned")),
    (RELEASED, _("released")),
    (DEFERRED, _("deferred")),
    (COMMENTED, _("commented")),
    (SUBMITTED, _("review asked for")),
    (SENT_BACK, _("sent back")),
    (APPROVED, _("approved")),
    (FINISHED, _("done")),
]


class WorkItemEvent(models.Model):
    """What a person has done to a work item: written in the transaction of the change, and never changed.

    made_by: the user; assignee: who had the item from then on; result: the form's values, where they were submitted.
    """

    item = models.ForeignKey(WorkItem, on_delete=models.CASCADE, related_name="events", verbose_name=_("work item"))
    kind = ExactField(_("kind"), max_length=20, choices=KINDS)
    made_by = ExactField(_("made by"), max_length=USER_LENGTH)
    assignee = ExactField(_("assignee"), max_length=USER_LENGTH, db_default="")
    comment = UnicodeTextField(_("comment"), null=True)  # MySQL's TEXT has no plain default
    result = ShownJSON(_("result"), null=True)
    deferred_until = models.DateTimeField(_("deferred until"), null=True)
    made_at = models.DateTimeField(_("made at"), db_default=DatabaseNow())

    class Meta:
        db_table = "sqlqueue_work_item_event"
        verbose_name = _("event of a work item")
        verbose_name_plural = _("events of work items")

    def __str__(self) -> str:
        return f"{self.kind} by {self.made_by}"
