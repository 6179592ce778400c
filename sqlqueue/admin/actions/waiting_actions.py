"""What the actions on messages that are not in the log yet have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import models
from django.http import HttpRequest
from django.utils.functional import Promise

from sqlqueue.admin.actions.base import MOST_LISTED, Action, log_action
from sqlqueue.conf import settings
from sqlqueue.operations.reschedule import Changed


class WaitingAction(Action):
    """An action on chosen rows of `model`, in this order: it calls the operation with the alias and their ids."""

    model: ClassVar[type[models.Model]]
    order: ClassVar[tuple[str, ...]] = ("id",)
    operation: ClassVar[staticmethod[[str, Iterable[int]], Changed]]
    sentence: ClassVar[Promise]  # what was done, with placeholders for the rows `done` and `left`
    flag: ClassVar[int]  # of the log entry

    def __init__(self, numbers: Iterable[int], success_url: str) -> None:
        rows = self.model._default_manager.using(settings.DATABASE).filter(pk__in=list(numbers))
        self.messages = list(rows.defer("payload", "headers", "body").order_by(*self.order))
        self.count, self.listed, self.success_url = len(self.messages), self.messages[:MOST_LISTED], success_url

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same messages again."""
        return [(ACTION_CHECKBOX_NAME, message.pk) for message in self.messages]

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation."""
        done = self.operation(settings.DATABASE, [message.pk for message in self.messages])
        sentence = str(self.sentence) % {"done": done.changed, "left": done.left}
        log_action(request, self.messages, self.flag, sentence)
        return sentence
