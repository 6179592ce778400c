"""Actions on relayed messages, one or many: try them again, or discard them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, DELETION
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.base import MOST_LISTED, Action, log_action
from sqlqueue.conf import settings
from sqlqueue.models import RelayedMessage
from sqlqueue.operations.relayed import discard, retry


class RelayedAction(Action):
    """An action on messages that wait for their way to another shard."""

    view_permission = "view_relayedmessage"

    def __init__(self, numbers: Iterable[int], success_url: str) -> None:
        rows = RelayedMessage.objects.using(settings.DATABASE).filter(pk__in=list(numbers))
        self.messages = list(rows.defer("payload", "headers", "body").order_by("id"))
        self.count, self.listed, self.success_url = len(self.messages), self.messages[:MOST_LISTED], success_url

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same messages again."""
        return [(ACTION_CHECKBOX_NAME, message.pk) for message in self.messages]


class RelayAgain(RelayedAction):
    """Let messages that were refused be moved once more."""

    name = "relay-again"
    label = gettext_lazy("Try again")
    explanation = gettext_lazy("A consumer process moves the messages that were refused to their shard once more.")
    permissions = ("change_relayedmessage",)

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation."""
        done = retry(settings.DATABASE, [message.pk for message in self.messages])
        sentence = _("Tried again: %(done)d. Left alone, because they were not refused: %(left)d.") % {
            "done": done.changed,
            "left": done.left,
        }
        log_action(request, self.messages, CHANGE, sentence)
        return sentence


class DiscardRelayed(RelayedAction):
    """Delete messages before they arrive."""

    name = "discard"
    label = gettext_lazy("Discard")
    explanation = gettext_lazy(
        "The messages are deleted for good, and never enter the log. A message that has arrived at its shard stays "
        "there. The shard has to answer, for only it knows what has arrived."
    )
    permissions = ("delete_relayedmessage",)
    dangerous = True

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation."""
        done = discard(settings.DATABASE, [message.pk for message in self.messages])
        sentence = _("Discarded: %(done)d. Left alone, because they have arrived: %(left)d.") % {
            "done": done.changed,
            "left": done.left,
        }
        log_action(request, self.messages, DELETION, sentence)
        return sentence


RELAYED_ACTIONS: dict[str, type[RelayedAction]] = {action.name: action for action in (RelayAgain, DiscardRelayed)}
