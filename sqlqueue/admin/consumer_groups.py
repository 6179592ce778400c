"""Groups: the list, the page of a group with its partitions, and the pages that move and remove a group."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.formats import number_format
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.cells import tag
from sqlqueue.admin.charts import Chart, TimeRange
from sqlqueue.admin.flow import FlowForm, changes, flow_notes
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.moving import MoveForm
from sqlqueue.admin.overview import HOURS, OverviewRows, dead_letters_url, requested_hours, three_charts
from sqlqueue.admin.pages import LOCK_TIMEOUT, may, page_url, require, show
from sqlqueue.admin.pausing import PausableAdmin
from sqlqueue.database.log import Log, current_log
from sqlqueue.database.transactions import outside_transactions
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown
from sqlqueue.log import groups
from sqlqueue.log.flow import override
from sqlqueue.models import ConsumerGroup, SubscriberHeartbeat
from sqlqueue.operations.move import move
from sqlqueue.stats.groups import GroupSurvey, states
from sqlqueue.stats.partitions import PartitionStats, partition_stats
from sqlqueue.stats.rewind_preview import count_above
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import duration
from sqlqueue.stats.throughput import series

MOST_PARTITIONS = 500  # shown on a page
METHODS = ["GET", "HEAD", "POST"]


@admin.register(ConsumerGroup)
class ConsumerGroupAdmin(PausableAdmin):
    """The list of groups by topic, with the stats of each."""

    list_display = ("consumer_group", "topic", "state", "lag", "oldest", "consumers", "dead_letters")
    list_filter = ("paused",)
    search_fields = ("=topic",)
    key = ("topic", "consumer_group")

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return a page, each row with its stats."""
        request.current_app = self.admin_site.name  # for links: Django sets it later
        found = super().get_page(request, changes)
        topics = {row.topic for row in found}
        only = next(iter(topics)) if len(topics) == 1 else ""
        stats = {(one.topic, one.group): one for one in survey(changes.log, only).groups} if topics else {}
        for row in found:
            row.stats = stats.get((row.topic, row.consumer_group))  # None: removed meanwhile
            row.dead_letters_url = dead_letters_url(request, row.stats) if row.stats else ""
        return found

    @admin.display(description=gettext_lazy("state"))
    def state(self, group: ConsumerGroup) -> str:
        """Show unusual states only."""
        stats = _stats(group)
        return format_html_join(" ", "{}", ((tag(state),) for state in states(stats))) if stats else ""

    @admin.display(description=gettext_lazy("lag"))
    def lag(self, group: ConsumerGroup) -> str:
        """Show the lag in messages."""
        stats = _stats(group)
        return ("≈ " if stats.estimated else "") + number_format(stats.lag, force_grouping=True) if stats else "–"

    @admin.display(description=gettext_lazy("oldest"))
    def oldest(self, group: ConsumerGroup) -> str:
        """Show the age of the oldest message that is not acked."""
        stats = _stats(group)
        return "–" if stats is None or stats.oldest_age is None else duration(stats.oldest_age)

    @admin.display(description=gettext_lazy("consumers"))
    def consumers(self, group: ConsumerGroup) -> str:
        """Show the number of subscribers that are alive."""
        stats = _stats(group)
        return number_format(stats.subscribers) if stats else "–"

    @admin.display(description=gettext_lazy("dead letters"))
    def dead_letters(self, group: ConsumerGroup) -> str:
        """Show the number of dead letters, with a link to them."""
        stats = _stats(group)
        if stats is None:
            return "–"
        count = number_format(stats.dead_letters, force_grouping=True) + ("+" if stats.more_dead_letters else "")
        url = group.dead_letters_url  # type: ignore[attr-defined]
        return format_html('<a href="{}">{}</a>', url, count) if url and count != "0" else count

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of a group's hours and limits, and the one that moves it. This runs outside of ATOMIC_REQUESTS:
        the horizon cannot be known in a transaction."""
        flow = require_http_methods(METHODS)(self.flow_view)
        view = outside_transactions(require_http_methods(METHODS)(self.move_view))
        return [self.row_path("flow", flow), self.row_path("move", view), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a group and its partitions."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        group = self._group(request, object_id)
        log, hours = current_log(), requested_hours(request)
        stats = survey(log, group.topic, group.consumer_group)
        rows = OverviewRows(request, log, stats)
        seen = stats.group(group.topic, group.consumer_group)
        resting = () if seen is None else (seen.outside_hours, seen.working_for)
        partitions = partition_stats(log, group.topic, group.consumer_group, *resting)
        subscribers = SubscriberHeartbeat.objects.using(log.alias).alive()
        context = {
            "row": group,
            "group": rows.group(group.topic, group.consumer_group),
            "attention": rows.attention_of(group.topic, group.consumer_group),
            "partitions": [self._partition(request, one) for one in partitions[:MOST_PARTITIONS]],
            "unlisted": max(0, len(partitions) - MOST_PARTITIONS),
            "subscribers": subscribers.filter(topic=group.topic, consumer_group=group.consumer_group).order_by("id"),
            "charts": _charts(log, group, TimeRange(stats.taken_at, timedelta(hours=hours))),
            "hours": hours,
            "choices": HOURS,
            "pause_url": self.row_url("pause", group) if self.has_pause_permission(request) else "",
            "resume_url": self.row_url("resume", group) if self.has_pause_permission(request) else "",
            "flow_url": self.row_url("flow", group) if may(request, "change_consumergroup") else "",
            "flow_notes": flow_notes(group),
            "move_url": self.row_url("move", group) if may(request, "replay_consumergroup") else "",
            "reschedule_url": self._reschedule_url(request, group),
            "remove_url": self.row_url("delete", group) if may(request, "delete_consumergroup") else "",
            **(extra_context or {}),
        }
        return show(self, request, "group", group, context)

    def flow_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show a group's hours and limits, and what overrides them (GET), and change that (POST)."""
        require(request, "change_consumergroup")
        group = self._group(request, object_id)
        form = FlowForm(group, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            text = changes(group, form.overrides)
            try:
                changed = override(current_log(), group.consumer_group, group.topic, form.overrides)
            except ConfigurationError as error:  # it was removed meanwhile
                self.message_user(request, str(error), messages.ERROR)
            else:
                if changed:
                    log_action(request, [group], CHANGE, text)
                self.message_user(request, text if changed else _("Nothing was changed."), messages.SUCCESS)
            return HttpResponseRedirect(self.row_url("change", group))
        title = _("Hours and limits of %(group)s") % {"group": group}
        return show(self, request, "group_flow", title, {"row": group, "form": form})

    def move_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count what moving the group would do (GET), and move it (POST)."""
        require(request, "replay_consumergroup")
        group = self._group(request, object_id)
        submitted = bool(request.GET) or request.method == "POST"
        data = request.POST if request.method == "POST" else request.GET
        form = MoveForm(group, data if submitted else None)
        counted = None
        if submitted and form.is_valid():
            if request.method == "POST":
                return self._move(request, group, form)
            counted = count_above(current_log(), group.topic, form.target, form.chosen_partition, group.consumer_group)
        context = {"row": group, "form": form, "counted": counted}
        context["first"] = form.target + 1 if counted else None
        title = _("Move %(group)s") % {"group": group}
        return show(self, request, "move_group", title, context)

    def _move(self, request: HttpRequest, group: ConsumerGroup, form: MoveForm) -> HttpResponse:
        try:
            used = move(
                current_log(),
                group.consumer_group,
                group.topic,
                form.target,
                form.chosen_partition,
                timeout=LOCK_TIMEOUT,
            )
        except (ConfigurationError, HorizonUnknown) as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self.row_url("change", group))
        moved = {"offset": used, "partition": form.chosen_partition}
        if form.chosen_partition is None:
            text = _("Moved to offset %(offset)d in all partitions.") % moved
        else:
            text = _("Moved to offset %(offset)d in partition %(partition)d.") % moved
        log_action(request, [group], CHANGE, text)
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(self.row_url("change", group))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show what removing the group deletes (GET), and remove it (POST)."""
        require(request, "delete_consumergroup")
        group = self._group(request, object_id)
        if request.method == "POST":
            groups.remove(current_log(), group.consumer_group, group.topic)
            log_action(request, [group], DELETION, _("Removed."))
            self.message_user(request, _("%(group)s is removed.") % {"group": group}, messages.SUCCESS)
            url = reverse("admin:sqlqueue_consumergroup_changelist", current_app=self.admin_site.name)
            return HttpResponseRedirect(url if self.has_view_permission(request) else reverse("admin:index"))
        topic, name = group.topic, group.consumer_group
        stats = survey(current_log(), only=topic, only_group=name).group(topic, name)
        subscribers = SubscriberHeartbeat.objects.using(current_log().alias).alive()
        alive = subscribers.filter(topic=topic, consumer_group=name).count()
        context = {"row": group, "stats": stats, "alive": alive}
        title = _("Remove %(group)s?") % {"group": group}
        return show(self, request, "remove_group", title, context)

    def _reschedule_url(self, request: HttpRequest, group: ConsumerGroup) -> str:
        """Return the URL of the form that reschedules many deliveries; "" if the user may not."""
        url = page_url(request, "request", "reschedule") if may(request, "reschedule_deliverystate") else ""
        return f"{url}?of={group.pk}" if url else ""

    def _partition(self, request: HttpRequest, one: PartitionStats) -> tuple[PartitionStats, str, str]:
        """Return a partition, the age of its oldest message as a text, and the URL of that message's page."""
        age = "" if one.oldest_age is None else duration(one.oldest_age)
        return one, age, "" if one.oldest is None else page_url(request, "message", "change", one.oldest)

    def _group(self, request: HttpRequest, object_id: str) -> ConsumerGroup:
        request.current_app = self.admin_site.name
        group = self.get_row(request, object_id)
        assert isinstance(group, ConsumerGroup)
        return group


def _stats(group: ConsumerGroup) -> GroupSurvey | None:
    return group.stats  # type: ignore[attr-defined]


def _charts(log: Log, group: ConsumerGroup, time_range: TimeRange) -> list[Chart]:
    rows = series(log, group.topic, group.consumer_group, time_range.since)
    return three_charts(
        time_range,
        [(row.minute, row.acked) for row in rows],
        [(row.minute, row.lag) for row in rows],
        [(row.minute, row.retried + row.dead) for row in rows],
    )
