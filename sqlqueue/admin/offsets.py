"""Offsets: the position and the watermark of each group in each partition."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue.admin.keyset_sections import SectionedAdmin
from sqlqueue.models import Offset


@admin.register(Offset)
class OffsetAdmin(SectionedAdmin):
    """The list of offset rows, by topic, group and partition. A group's own page marks the stuck ones."""

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
