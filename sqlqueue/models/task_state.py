"""Task states: the status and the outcome of tasks of Django's Tasks interface."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import TOPIC_LENGTH
from sqlqueue.database.fields import ExactField, UnicodeTextField

TASK_ID_LENGTH = 64
BACKEND_LENGTH = 100
PATH_LENGTH = 255

READY, RUNNING, FAILED, SUCCESSFUL = "READY", "RUNNING", "FAILED", "SUCCESSFUL"


class TaskState(models.Model):
    """One enqueued task: written with its message, at the start and at the end of each attempt, and deleted when
    `expires_at` has passed. It outlives its message.

    arguments, return_value, errors, worker_ids are JSON as text, so that every database keeps all of JSON. (run_offset,
    run_token, run_attempt) say which delivery has written last: they grow from one to the next, and an older one
    changes nothing. `run` names that attempt. failures: how many attempts of this message have raised. kept_for:
    seconds from the end until it expires, as of the last attempt's start; NULL: for ever.
    """

    id = ExactField(_("id"), primary_key=True, max_length=TASK_ID_LENGTH)
    backend = ExactField(_("backend"), max_length=BACKEND_LENGTH)
    queue = ExactField(_("queue"), max_length=TOPIC_LENGTH)
    path = ExactField(_("task"), max_length=PATH_LENGTH)
    arguments = UnicodeTextField(_("arguments"))
    priority = models.SmallIntegerField(_("priority"))
    run_after = models.DateTimeField(_("run after"), null=True)
    status = ExactField(_("status"), max_length=10)
    enqueued_at = models.DateTimeField(_("enqueued at"))
    started_at = models.DateTimeField(_("started at"), null=True)
    last_attempted_at = models.DateTimeField(_("last attempted at"), null=True)
    finished_at = models.DateTimeField(_("finished at"), null=True)
    expires_at = models.DateTimeField(_("expires at"), null=True)
    worker_ids = UnicodeTextField(_("workers"))
    errors = UnicodeTextField(_("errors"))
    return_value = UnicodeTextField(_("return value"), null=True)
    kept_for = models.BigIntegerField(_("kept for (seconds)"), null=True)
    failures = models.IntegerField(_("failures"), db_default=0)
    run = ExactField(_("attempt's name"), max_length=32, db_default="")
    run_offset = models.BigIntegerField(_("attempt's offset"), db_default=0)
    run_token = models.BigIntegerField(_("attempt's fencing token"), db_default=0)
    run_attempt = models.IntegerField(_("attempt"), db_default=0)

    class Meta:
        db_table = "sqlqueue_task_state"
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        indexes = [
            # Supports: SELECT … WHERE expires_at <= ? ORDER BY expires_at LIMIT (the collector).
            models.Index(fields=["expires_at"], name="sqlqueue_task_expires"),
        ]

    def __str__(self) -> str:
        return f"{self.path} {self.id}: {self.status}"
