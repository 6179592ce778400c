"""Groups: the list, and the page of a group with its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from sqlqueue.admin.group_operations import GROUP_OPERATIONS, SetLimits
from sqlqueue.admin.operation import OperatedAdmin
from sqlqueue.admin.overview import OverviewRows, charts
from sqlqueue.admin.pages import page_url
from sqlqueue.models import ConsumerGroup, SubscriberHeartbeat
from sqlqueue.operations.topics import pause, resume
from sqlqueue.stats.attention import findings_of_group
from sqlqueue.stats.survey import survey_with_partitions

MOST_PARTITIONS = 500  # shown on a page


@admin.register(ConsumerGroup)
class ConsumerGroupAdmin(OperatedAdmin):
    """The list of groups by topic, and the page of one. The overview has the stats of all."""

    list_display = ("consumer_group", "topic", "state")
    list_filter = ("paused",)
    search_fields = ("=topic",)
    key = ("topic", "consumer_group")
    operations = GROUP_OPERATIONS
    page_template = "group"

    def set_paused(self, row: ConsumerGroup, paused: bool) -> bool:
        """Let no consumer read for a group, or let them again."""
        return (pause if paused else resume)(self.log, row.topic, row.consumer_group)

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the group's stats and partitions."""
        group, log = row, self.log
        stats, partitions = survey_with_partitions(log, group.topic, group.consumer_group)
        rows = OverviewRows(request, log, stats)
        seen = stats.group(group.topic, group.consumer_group)
        subscribers = SubscriberHeartbeat.objects.using(log.alias).alive()
        return group, {
            "group": rows.group(seen) if seen else None,
            "findings": rows.linked(findings_of_group(stats, seen)) if seen else [],
            "notes": SetLimits(self, request, [group]).notes(),
            "partitions": [
                (one, one.oldest and page_url(request, "message", "change", one.oldest))
                for one in partitions[:MOST_PARTITIONS]
            ],
            "unlisted": max(0, len(partitions) - MOST_PARTITIONS),
            "subscribers": subscribers.filter(topic=group.topic, consumer_group=group.consumer_group).order_by("id"),
            **charts(request, log, stats.taken_at, topic=group.topic, consumer_group=group.consumer_group),
        }
