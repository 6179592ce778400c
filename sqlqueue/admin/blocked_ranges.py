"""Blocked ranges: messages that wait behind an earlier one of their key, one row for each key."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue.admin.keyset_sections import SectionedAdmin
from sqlqueue.models import BlockedRange


@admin.register(BlockedRange)
class BlockedRangeAdmin(SectionedAdmin):
    """The list of blocked ranges, by topic, group, partition and key."""

    list_display = ("partition_key", "consumer_group", "topic", "partition", "priority", "low", "high", "messages")
    search_fields = ("=topic",)
    key = ("topic", "consumer_group", "partition", "priority", "partition_key")
