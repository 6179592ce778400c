"""Receipts: what became of deliveries."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.models import Receipt


@admin.register(Receipt)
class ReceiptAdmin(KeysetAdmin):
    """Newest first; to be found by a message's offset."""

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
        """How long it took."""
        return f"{(receipt.finished_at - receipt.started_at).total_seconds():.3f}"
