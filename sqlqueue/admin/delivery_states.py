"""Delivery states: messages that a group remembers one by one."""

from __future__ import annotations

from django.contrib import admin
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.core.plan import NOT_IN_FLIGHT
from sqlqueue.models import DeliveryState


@admin.register(DeliveryState)
class DeliveryStateAdmin(KeysetAdmin):
    """Newest first. A message's own page shows what became of it in every group."""

    list_display = (
        "message_offset",
        "consumer_group",
        "topic",
        "partition",
        "state",
        "retry_count",
        "invisible_until",
        "error",
    )

    @admin.display(description=_("state"))
    def state(self, row: DeliveryState) -> str:
        """In one word or two."""
        if row.acked:
            return str(_("acked"))
        if row.in_flight != NOT_IN_FLIGHT:
            return str(_("in flight"))
        return str(_("failing") if row.retry_count > 0 else _("waits"))

    @admin.display(description=_("last error"))
    def error(self, row: DeliveryState) -> str:
        """Its last line."""
        return Truncator((row.last_error or "").strip().rpartition("\n")[2]).chars(200) or "–"
