"""Delivery states: the messages that have a row of their own for a group."""

from __future__ import annotations

from django.contrib import admin
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.admin.readable import harmless
from sqlqueue.core.settle_plan import ALONE, NOT_IN_FLIGHT, TOGETHER
from sqlqueue.models import DeliveryState
from sqlqueue.models.delivery_state import IN_FLIGHT


@admin.register(DeliveryState)
class DeliveryStateAdmin(KeysetAdmin):
    """The list of delivery states, newest first. A message's own page shows its status in every group."""

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

    fields = (
        "consumer_group",
        "topic",
        "partition",
        "priority",
        "message_offset",
        "acked",
        "in_flight_as",
        "invisible_until",
        "retry_count",
        "last_error",
    )

    @admin.display(description=_("in flight"))
    def in_flight_as(self, row: DeliveryState) -> str:
        """Show how it is in flight. Values above ALONE are alone, too: they count the deaths before."""
        mode = str(dict(IN_FLIGHT)[max(NOT_IN_FLIGHT, min(row.in_flight, ALONE))])
        if row.in_flight <= ALONE:
            return mode
        deaths = row.in_flight - TOGETHER
        return _("%(mode)s, after the end of %(deaths)d consumer processes") % {"mode": mode, "deaths": deaths}

    @admin.display(description=_("state"))
    def state(self, row: DeliveryState) -> str:
        """Show the state as a text."""
        if row.acked:
            return str(_("acked"))
        if row.in_flight != NOT_IN_FLIGHT:
            return str(_("in flight"))
        return str(_("failing") if row.retry_count > 0 else _("waits"))

    @admin.display(description=_("last error"))
    def error(self, row: DeliveryState) -> str:
        """Show the last line of the last error."""
        return Truncator(harmless((row.last_error or "").strip().rpartition("\n")[2])).chars(200) or "–"
