"""Actions on scheduled messages, one or many: run them now, or take them back."""

from __future__ import annotations

from django.contrib.admin.models import CHANGE, DELETION
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.waiting_actions import WaitingAction
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.edit_scheduled import run_now, withdraw


class ScheduledAction(WaitingAction):
    """An action on messages that have not entered the log."""

    view_permission = "view_scheduledmessage"
    model = ScheduledMessage
    order = ("due_at", "id")


class RunNow(ScheduledAction):
    """Make scheduled messages due."""

    name = "run-now"
    label = gettext_lazy("Run now")
    explanation = gettext_lazy(
        "The messages become due now, and a consumer process moves them into the log. Messages that the log has "
        "refused are tried again."
    )
    permissions = ("change_scheduledmessage",)
    operation = staticmethod(run_now)
    sentence = gettext_lazy("Due now: %(done)d. Left alone, because they are entering the log: %(left)d.")
    flag = CHANGE


class TakeBack(ScheduledAction):
    """Delete messages from the schedule."""

    name = "take-back"
    label = gettext_lazy("Take back")
    explanation = gettext_lazy(
        "The messages are deleted from the schedule for good, and never enter the log. A message that enters the log "
        "meanwhile stays there."
    )
    permissions = ("delete_scheduledmessage",)
    dangerous = True
    operation = staticmethod(withdraw)
    sentence = gettext_lazy("Taken back: %(done)d. Left alone, because they are entering the log: %(left)d.")
    flag = DELETION


SCHEDULED_ACTIONS: dict[str, type[ScheduledAction]] = {action.name: action for action in (RunNow, TakeBack)}
