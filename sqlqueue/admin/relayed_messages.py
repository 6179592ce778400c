"""Relayed messages: those that wait for their way to another shard, and those that it has refused."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.actions.relayed_actions import RELAYED_ACTIONS
from sqlqueue.admin.scheduled_form import WaitingForm
from sqlqueue.admin.scheduled_messages import WaitingList
from sqlqueue.conf import settings
from sqlqueue.models import RelayedMessage
from sqlqueue.operations.relayed import edit


@admin.register(RelayedMessage)
class RelayedMessageAdmin(WaitingList):
    """The list of relayed messages by their shard. Without SHARDS there is none."""

    list_display = ("id", "shard", "topic", "state", "created_at", "preview", "key_and_id")
    key = ("shard", "id")
    action_classes = RELAYED_ACTIONS
    form_class = WaitingForm
    title = _("Relayed message %d")
    gone = _("Message %s does not wait any more: it has arrived at its shard, or was discarded.")

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Hide the list where there is one shard."""
        return settings.sharded and super().has_module_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Hide the pages where there is one shard."""
        return settings.sharded and super().has_view_permission(request, obj)

    def edit_row(self, number: int, changes: dict[str, Any]) -> None:
        """Change a relayed message."""
        edit(settings.DATABASE, number, **changes)
