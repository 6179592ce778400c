"""Actions on scheduled messages, one or many: run them now, or take them back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpRequest
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.base import MOST_LISTED, Action, log_action
from sqlqueue.database.log import Log, current_log
from sqlqueue.models import ScheduledMessage
from sqlqueue.operations.edit_scheduled import run_now, withdraw
from sqlqueue.operations.reschedule import Changed


class ScheduledAction(Action):
    """An action on scheduled messages: it calls the operation with the log and their numbers."""

    view_permission = "view_scheduledmessage"
    operation: ClassVar[staticmethod[[Log, Iterable[int]], Changed]]
    sentence: ClassVar[Promise]  # what was done, with placeholders for the rows `done` and `left`
    flag: ClassVar[int]  # of the log entry

    def __init__(self, numbers: Iterable[int], success_url: str) -> None:
        rows = ScheduledMessage.objects.using(current_log().alias).filter(pk__in=list(numbers))
        self.messages = list(rows.defer("payload", "headers", "body").order_by("due_at", "id"))
        self.count, self.listed, self.success_url = len(self.messages), self.messages[:MOST_LISTED], success_url

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same messages again."""
        return [(ACTION_CHECKBOX_NAME, message.pk) for message in self.messages]

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation."""
        done = self.operation(current_log(), [message.pk for message in self.messages])
        sentence = str(self.sentence) % {"done": done.changed, "left": done.left}
        log_action(request, self.messages, self.flag, sentence)
        return sentence


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
