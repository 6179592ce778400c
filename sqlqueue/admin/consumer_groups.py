"""Groups: how each stands in its partitions, and what may be done with it: pause, replay, remove."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION
from django.core.exceptions import PermissionDenied
from django.db import transaction
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods

from sqlqueue.admin.charts import Chart, Span
from sqlqueue.admin.durations import duration
from sqlqueue.admin.links import page
from sqlqueue.admin.moving import MoveForm
from sqlqueue.admin.orders import note
from sqlqueue.admin.overview import HOURS, Rows, hours_asked, three_charts
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import may, require
from sqlqueue.admin.verbs import PausableAdmin
from sqlqueue.conf import settings
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown
from sqlqueue.log import groups
from sqlqueue.log.reset import reset
from sqlqueue.models import ConsumerGroup, SubscriberHeartbeat
from sqlqueue.observe.activity import series
from sqlqueue.observe.partitions import PartitionSurvey, survey_partitions
from sqlqueue.observe.replayed import count_above
from sqlqueue.observe.survey import survey

MOST_PARTITIONS = 500  # shown on a page
METHODS = ["GET", "HEAD", "POST"]


@admin.register(ConsumerGroup)
class ConsumerGroupAdmin(PausableAdmin):
    """The groups by topic."""

    list_display = ("consumer_group", "topic", "paused", "start", "created_at")
    list_filter = ("paused",)
    search_fields = ("=topic",)
    key = ("topic", "consumer_group")

    def get_urls(self) -> list[URLPattern]:
        """Add the page that moves a group. Not in a transaction, whatever ATOMIC_REQUESTS says: the horizon cannot be
        known in one."""
        view = transaction.non_atomic_requests(using=settings.DATABASE)(require_http_methods(METHODS)(self.replay_view))
        return [self.address("replay", view), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a group and its partitions."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        group = self._begin(request, object_id)
        alias, hours = settings.DATABASE, hours_asked(request)
        seen = survey(alias, group.topic, group.consumer_group)
        rows = Rows(request, alias, seen)
        partitions = survey_partitions(alias, group.topic, group.consumer_group)
        subscribers = SubscriberHeartbeat.objects.using(alias).alive()
        context = {
            "row": group,
            "group": rows.group(group.topic, group.consumer_group),
            "problems": rows.problems_of(group.topic, group.consumer_group),
            "partitions": [self._partition(request, one) for one in partitions[:MOST_PARTITIONS]],
            "left_out": max(0, len(partitions) - MOST_PARTITIONS),
            "subscribers": subscribers.filter(topic=group.topic, consumer_group=group.consumer_group).order_by("id"),
            "charts": _charts(alias, group, Span(seen.taken_at, timedelta(hours=hours))),
            "hours": hours,
            "choices": HOURS,
            "pause_url": self.page("pause", group) if self.has_pause_permission(request) else "",
            "resume_url": self.page("resume", group) if self.has_pause_permission(request) else "",
            "replay_url": self.page("replay", group) if may(request, "replay_consumergroup") else "",
            "remove_url": self.page("delete", group) if may(request, "delete_consumergroup") else "",
            **(extra_context or {}),
        }
        return show(self, request, "group", group, context)

    def replay_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count what moving a group would do (GET), and do it (POST)."""
        require(request, "replay_consumergroup")
        group = self._begin(request, object_id)
        asked = bool(request.GET) or request.method == "POST"
        form = MoveForm(group, (request.POST if request.method == "POST" else request.GET) if asked else None)
        counted = None
        if asked and form.is_valid():
            if request.method == "POST":
                return self._move(request, group, form)
            counted = count_above(
                settings.DATABASE, group.topic, form.target, form.partition_asked, group.consumer_group
            )
        context = {"row": group, "form": form, "counted": counted}
        context["first"] = form.target + 1 if counted else None
        title = _("Replay %(group)s") % {"group": group}
        return show(self, request, "replay_group", title, context)

    def _move(self, request: HttpRequest, group: ConsumerGroup, form: MoveForm) -> HttpResponse:
        try:
            used = reset(settings.DATABASE, group.consumer_group, group.topic, form.target, form.partition_asked)
        except (ConfigurationError, HorizonUnknown) as error:
            self.message_user(request, str(error), messages.ERROR)
            return HttpResponseRedirect(self.page("change", group))
        place = {"offset": used, "partition": form.partition_asked}
        if form.partition_asked is None:
            text = _("Moved to offset %(offset)d in all partitions.") % place
        else:
            text = _("Moved to offset %(offset)d in partition %(partition)d.") % place
        note(request, [group], CHANGE, text)
        self.message_user(request, text, messages.SUCCESS)
        return HttpResponseRedirect(self.page("change", group))

    def delete_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Say what removing a group means (GET), and remove it (POST)."""
        require(request, "delete_consumergroup")
        group = self._begin(request, object_id)
        place = {"topic": group.topic, "consumer_group": group.consumer_group}
        if request.method == "POST":
            groups.remove(settings.DATABASE, group.consumer_group, group.topic)
            note(request, [group], DELETION, _("Removed."))
            self.message_user(request, _("%(group)s is removed.") % {"group": group}, messages.SUCCESS)
            name = reverse("admin:sqlqueue_consumergroup_changelist", current_app=self.admin_site.name)
            return HttpResponseRedirect(name if self.has_view_permission(request) else reverse("admin:index"))
        where = {"only": group.topic, "only_group": group.consumer_group}
        seen = survey(settings.DATABASE, **where).group(group.topic, group.consumer_group)
        alive = SubscriberHeartbeat.objects.using(settings.DATABASE).alive().filter(**place).count()
        context = {"row": group, "seen": seen, "alive": alive}
        title = _("Remove %(group)s?") % {"group": group}
        return show(self, request, "remove_group", title, context)

    def _partition(self, request: HttpRequest, one: PartitionSurvey) -> tuple[PartitionSurvey, str, str]:
        """Return a partition, the age of its oldest message in words, and that message's page."""
        age = "" if one.oldest_age is None else duration(one.oldest_age)
        return one, age, "" if one.oldest is None else page(request, "message", "change", one.oldest)

    def _begin(self, request: HttpRequest, object_id: str) -> ConsumerGroup:
        request.current_app = self.admin_site.name
        group = self.row(request, object_id)
        assert isinstance(group, ConsumerGroup)
        return group


def _charts(alias: str, group: ConsumerGroup, span: Span) -> list[Chart]:
    rows = series(alias, group.topic, group.consumer_group, span.since)
    return three_charts(
        span,
        [(row.minute, row.acked) for row in rows],
        [(row.minute, row.lag) for row in rows],
        [(row.minute, row.retried + row.dead) for row in rows],
    )
