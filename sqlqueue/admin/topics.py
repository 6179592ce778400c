"""Topics: the list, the page of a topic with its options and groups, and the page that overrides options."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.core.exceptions import PermissionDenied
from django.db import models
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.cells import tag
from sqlqueue.admin.overview import OverviewRows
from sqlqueue.admin.pages import may, require, show
from sqlqueue.admin.purging import PurgeableAdmin
from sqlqueue.admin.topic_options import OptionsForm, option_notes, sentence
from sqlqueue.core.settings import ACKED
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.topic_options import of_settings, override
from sqlqueue.models import Topic
from sqlqueue.stats.changes import change_advice, change_text, progress_text
from sqlqueue.stats.moments import moment
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import duration
from sqlqueue.stats.topics import TopicSurvey


@admin.register(Topic)
class TopicAdmin(PurgeableAdmin):
    """The list of topics by name, dead-letter topics included."""

    list_display = ("name", "state", "partitions", "priorities", "kept", "history", "created_at")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)

    @admin.display(description=gettext_lazy("state"))
    def state(self, topic: Topic) -> str:
        """Show unusual states only."""
        return tag(_("paused")) if topic.paused else ""

    @admin.display(description=gettext_lazy("kept for"))
    def kept(self, topic: Topic) -> str:
        """Show the retention."""
        return _("for ever") if topic.retention is None else duration(topic.retention)

    def get_urls(self) -> list[URLPattern]:
        """Add the page of a topic's options."""
        view = require_http_methods(["GET", "HEAD", "POST"])(self.options_view)
        return [self.row_path("options", view), *super().get_urls()]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a topic and its groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        topic = self.get_row(request, object_id)
        rows = OverviewRows(request, current_log(), survey(current_log(), topic.name))
        context = {
            "row": topic,
            "topic": (shown := rows.topic(topic.name)),
            "change": _change(shown.stats) if shown else None,
            "fields": [
                *((field.verbose_name, _shown(field, topic)) for field in self.opts.fields),
                *_of_settings(topic),
            ],
            "pause_url": self.row_url("pause", topic) if self.has_pause_permission(request) else "",
            "resume_url": self.row_url("resume", topic) if self.has_pause_permission(request) else "",
            "options_url": self.row_url("options", topic) if may(request, "change_topic") else "",
            "option_notes": option_notes(topic),
            "purge_url": self.purge_url(request, topic),
            **(extra_context or {}),
        }
        return show(self, request, "topic", topic.name, context)

    def options_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show which options override the settings (GET), and change that (POST)."""
        require(request, "change_topic")
        request.current_app = self.admin_site.name
        topic = self.get_row(request, object_id)
        form = OptionsForm(topic, request.POST if request.method == "POST" else None)
        if form.is_bound and form.is_valid():
            try:
                changed = override(current_log(), topic.name, form.overrides)
            except ConfigurationError as error:  # it was removed meanwhile
                self.message_user(request, str(error), messages.ERROR)
            else:
                text = " ".join(map(sentence, changed)) or _("Nothing was changed.")
                if changed:
                    log_action(request, [topic], CHANGE, text)
                self.message_user(request, text, messages.SUCCESS)
            return HttpResponseRedirect(self.row_url("change", topic))
        context = {"row": topic, "form": form}
        return show(self, request, "topic_options", _("Options of %(topic)s") % {"topic": topic}, context)


def _change(topic: TopicSurvey) -> dict[str, Any] | None:
    """Return what the page says of a change of the topic's partitions; None while none is under way."""
    if topic.change is None:
        return None
    return {
        "what": change_text(topic.name, topic.change),
        "far": progress_text(topic.change),
        "advice": change_advice(topic.name, topic.change),
    }


def _of_settings(topic: Topic) -> Iterator[tuple[str, str]]:
    """Yield the names and values of what this site's settings alone say, beyond the defaults."""
    options = of_settings(topic.name)
    if options.retention_from == ACKED and topic.retention is not None:
        yield _("Retention counts from"), _("when every group has settled a message (by this site's settings)")
    if options.keep_collected is not None:
        told = _("%(time)s in a table (by this site's settings)") % {"time": duration(options.keep_collected)}
        yield _("What is collected is kept for"), told


def _shown(field: models.Field[Any, Any], topic: Topic) -> str:
    """Return a value of a topic as a text."""
    value = field.value_from_object(topic)
    if field.name == "retention":
        return _("for ever") if value is None else duration(value)
    if isinstance(field, models.DateTimeField):
        return moment(value)
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    return "–" if value in (None, "") else str(value)
