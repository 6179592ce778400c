"""Scheduled messages: on their way into the log, or refused by it."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.ordered import OrderedAdmin
from sqlqueue.models import ScheduledMessage


@admin.register(ScheduledMessage)
class ScheduledMessageAdmin(OrderedAdmin):
    """The refused ones first, with their refusal; then what is due first."""

    list_display = ("id", "topic", "state", "due_at", "partition_key", "message_id", "priority", "target_group")
    list_filter = ("refused",)
    search_fields = ("=id",)
    key = ("due_at", "id")

    def sections(self) -> Sequence[Q]:
        """Index: (refused, due_at)."""
        return [Q(refused=True), Q(refused=False)]

    @admin.display(description=_("state"))
    def state(self, message: ScheduledMessage) -> str:
        """Why it was refused, or that it waits."""
        if message.refused:
            return f"{_('refused')}: {Truncator(message.refusal or '').chars(300)}"
        return str(_("waits"))
