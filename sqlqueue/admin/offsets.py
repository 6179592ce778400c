"""Offsets: where each group stands in each partition."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue.admin.ordered import OrderedAdmin
from sqlqueue.models import Offset


@admin.register(Offset)
class OffsetAdmin(OrderedAdmin):
    """By topic, group and partition. A group's own page says which ones stand still."""

    list_display = (
        "consumer_group",
        "topic",
        "partition",
        "priority",
        "offset_acked",
        "position",
        "claimed_to",
        "updated_at",
        "fencing_token",
    )
    search_fields = ("=topic",)
    key = ("topic", "consumer_group", "partition", "priority")
