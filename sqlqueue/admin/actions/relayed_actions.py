"""Actions on relayed messages, one or many: try them again, or discard them."""

from __future__ import annotations

from django.contrib.admin.models import CHANGE, DELETION
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.waiting_actions import WaitingAction
from sqlqueue.models import RelayedMessage
from sqlqueue.operations.relayed import discard, retry


class RelayedAction(WaitingAction):
    """An action on messages that wait for their way to another shard."""

    view_permission = "view_relayedmessage"
    model = RelayedMessage


class RelayAgain(RelayedAction):
    """Let messages that were refused be moved once more."""

    name = "relay-again"
    label = gettext_lazy("Try again")
    explanation = gettext_lazy("A consumer process moves the messages that were refused to their shard once more.")
    permissions = ("change_relayedmessage",)
    operation = staticmethod(retry)
    sentence = gettext_lazy("Tried again: %(done)d. Left alone, because they were not refused: %(left)d.")
    flag = CHANGE


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
    operation = staticmethod(discard)
    sentence = gettext_lazy("Discarded: %(done)d. Left alone, because they have arrived: %(left)d.")
    flag = DELETION


RELAYED_ACTIONS: dict[str, type[RelayedAction]] = {action.name: action for action in (RelayAgain, DiscardRelayed)}
