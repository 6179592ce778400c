"""The tables of people's work: work items, and their audit trail."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import GROUP_LENGTH, ID_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, ShownJSON, UnicodeTextField
from sqlqueue.models.topic import TOPIC_COLUMN

USER_LENGTH = 150  # characters of a user's name
OPEN, REVIEW, DONE = "open", "review", "done"
UNFINISHED = (OPEN, REVIEW)
STATES = [(OPEN, _("open")), (REVIEW, _("in review")), (DONE, _("done"))]

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


class WorkItem(models.Model):
    """A message that a handler has handed over to people: written in the transaction that acks it. It outlives its
    message, and so has a copy of it.

    assignee: the user who works on it, "" for none; deferred_until: not to be shown before, at the assignee's wish;
    form: values that the handler has filled the form with; result: the form's values as they were last submitted;
    author: the user who submitted them; version: grows with each change, so that of two people who decide at the same
    time one is refused.
    """

    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    partition_key = ExactField(_("key"), max_length=KEY_LENGTH, db_default="")
    message_id = ExactField(_("id"), max_length=ID_LENGTH)
    message_offset = models.BigIntegerField(_("offset"))
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    fencing_token = models.BigIntegerField(_("fencing token"))
    attempts = models.IntegerField(_("attempts"))
    payload = ShownJSON(_("payload"))
    headers = ShownJSON(_("headers"), null=True)
    body = models.BinaryField(_("body"), null=True)  # a payload of bytes: then `payload` is JSON's null
    published_at = models.DateTimeField(_("published at"))
    reason = UnicodeTextField(_("reason"), null=True)  # MySQL's TEXT has no plain default
    form = ShownJSON(_("form"), null=True)
    state = ExactField(_("state"), max_length=10, choices=STATES, db_default=OPEN)
    assignee = ExactField(_("assignee"), max_length=USER_LENGTH, db_default="")
    author = ExactField(_("author"), max_length=USER_LENGTH, db_default="")
    result = ShownJSON(_("result"), null=True)
    version = models.IntegerField(_("version"), db_default=0)
    handed_over_at = models.DateTimeField(_("handed over at"), db_default=DatabaseNow())
    due_at = models.DateTimeField(_("due at"), null=True)
    deferred_until = models.DateTimeField(_("deferred until"), null=True)
    updated_at = models.DateTimeField(_("updated at"), db_default=DatabaseNow())
    finished_at = models.DateTimeField(_("finished at"), null=True)

    class Meta:
        db_table = "sqlqueue_work_item"
        verbose_name = _("work item")
        verbose_name_plural = _("work items")
        permissions = [
            ("work_on_workitem", "Can work on work items"),
            ("assign_workitem", "Can assign work items to others"),
            ("review_workitem", "Can review work items"),
        ]
        constraints = [
            # Supports: INSERT … of a settle that is run again; SELECT … WHERE message_offset IN (…) AND consumer_group.
            # A token is new after a reset, which delivers the message again.
            models.UniqueConstraint(
                fields=["message_offset", "consumer_group", "fencing_token"], name="sqlqueue_work_item_message"
            ),
        ]
        indexes = [
            # Supports: SELECT … WHERE state = ? AND assignee = ? ORDER BY id LIMIT (a person's own, the unassigned).
            models.Index(fields=["state", "assignee"], name="sqlqueue_work_item_assignee"),
            # Supports: SELECT … WHERE state = ? AND topic = ? ORDER BY id LIMIT (a topic's, and so a team's).
            models.Index(fields=["state", "topic"], name="sqlqueue_work_item_topic"),
            # Supports: SELECT … WHERE state = ? AND due_at <= now ORDER BY due_at LIMIT (the overdue).
            models.Index(fields=["state", "due_at"], name="sqlqueue_work_item_due"),
            # Supports: SELECT … WHERE finished_at <= ? ORDER BY finished_at LIMIT (those whose retention is over).
            models.Index(fields=["finished_at"], name="sqlqueue_work_item_finished"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} #{self.pk}"


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


class MyWork(WorkItem):
    """A proxy without a table: it lists the page of a person's own work in the admin's index."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("My work")
        verbose_name_plural = _("My work")
