"""Blocked ranges: the messages that wait behind an earlier one of their key, a row for each key."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue.admin.ordered import OrderedAdmin
from sqlqueue.models import BlockedRange


@admin.register(BlockedRange)
class BlockedRangeAdmin(OrderedAdmin):
    """By topic, group, partition and key. A message's own page says whether it waits."""

    list_display = ("partition_key", "consumer_group", "topic", "partition", "priority", "low", "high", "messages")
    search_fields = ("=topic",)
    key = ("topic", "consumer_group", "partition", "priority", "partition_key")
