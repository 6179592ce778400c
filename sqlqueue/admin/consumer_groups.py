"""Groups: the list, and the page of a group with its partitions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import tag
from sqlqueue.admin.charts import TimeRange, three_charts
from sqlqueue.admin.group_operations import GROUP_OPERATIONS, SetLimits
from sqlqueue.admin.operation import OperatedAdmin
from sqlqueue.admin.overview import HOURS, OverviewRows, requested_hours
from sqlqueue.admin.pages import page_url
from sqlqueue.models import ConsumerGroup, SubscriberHeartbeat
from sqlqueue.operations.topics import pause, resume
from sqlqueue.stats.attention import findings_of_group
from sqlqueue.stats.partitions import PartitionStats, partition_stats
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import duration
from sqlqueue.stats.throughput import series

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

    @admin.display(description=_("state"))
    def state(self, group: ConsumerGroup) -> str:
        """Show unusual states only."""
        return tag(_("paused")) if group.paused else ""

    def set_paused(self, row: ConsumerGroup, paused: bool) -> bool:
        """Let no consumer read for a group, or let them again."""
        return (pause if paused else resume)(self.log, row.topic, row.consumer_group)

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the group's stats and partitions."""
        group, log, hours = row, self.log, requested_hours(request)
        stats = survey(log, group.topic, group.consumer_group)
        rows = OverviewRows(request, log, stats)
        seen = stats.group(group.topic, group.consumer_group)
        resting = () if seen is None else (seen.outside_hours, seen.working_for)
        partitions = partition_stats(log, group.topic, group.consumer_group, *resting)
        time_range = TimeRange(stats.taken_at, timedelta(hours=hours))
        minutes = [
            (one.minute, one.acked, one.lag, one.retried + one.dead)
            for one in series(log, group.topic, group.consumer_group, time_range.since)
        ]
        subscribers = SubscriberHeartbeat.objects.using(log.alias).alive()
        return group, {
            "group": rows.group(seen) if seen else None,
            "findings": rows.linked(findings_of_group(stats, seen)) if seen else [],
            "notes": SetLimits(self, request, [group]).notes(),
            "partitions": [_partition(request, one) for one in partitions[:MOST_PARTITIONS]],
            "unlisted": max(0, len(partitions) - MOST_PARTITIONS),
            "subscribers": subscribers.filter(topic=group.topic, consumer_group=group.consumer_group).order_by("id"),
            "charts": three_charts(time_range, minutes),
            "hours": hours,
            "choices": HOURS,
        }


def _partition(request: HttpRequest, one: PartitionStats) -> tuple[PartitionStats, str, str]:
    """Return a partition, the age of its oldest message as a text, and the URL of that message's page."""
    age = "" if one.oldest_age is None else duration(one.oldest_age)
    return one, age, "" if one.oldest is None else page_url(request, "message", "change", one.oldest)
