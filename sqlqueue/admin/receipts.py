"""Receipts: the outcomes of deliveries."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.models import Receipt


@admin.register(Receipt)
class ReceiptAdmin(KeysetAdmin):
    """The list of receipts, newest first. The search finds those of a message by its offset."""

    list_display = (
        "message_offset",
        "consumer_group",
        "topic",
        "partition",
        "outcome",
        "attempts",
        "started_at",
        "seconds",
        "worker",
    )
    search_fields = ("=message_offset",)

    @admin.display(description=_("seconds"))
    def seconds(self, receipt: Receipt) -> str:
        """Show how long the handler took."""
        return f"{(receipt.finished_at - receipt.started_at).total_seconds():.3f}"
