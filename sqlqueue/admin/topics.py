"""Topics: their options, how their groups stand, and the buttons that pause and resume them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse

from sqlqueue.admin.overview import Rows
from sqlqueue.admin.pages import show
from sqlqueue.admin.verbs import PausableAdmin
from sqlqueue.conf import settings
from sqlqueue.models import Topic
from sqlqueue.observe.survey import survey


@admin.register(Topic)
class TopicAdmin(PausableAdmin):
    """The topics by name, dead-letter topics among them."""

    list_display = ("name", "paused", "partitions", "priorities", "retention", "history", "created_at")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a topic and its groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        topic = self.row(request, object_id)
        rows = Rows(request, settings.DATABASE, survey(settings.DATABASE, topic.name))
        context = {
            "row": topic,
            "topic": rows.topic(topic.name),
            "fields": [(field, field.value_from_object(topic)) for field in self.opts.fields],
            "pause_url": self.page("pause", topic) if self.has_pause_permission(request) else "",
            "resume_url": self.page("resume", topic) if self.has_pause_permission(request) else "",
            **(extra_context or {}),
        }
        return show(self, request, "topic", topic.name, context)
