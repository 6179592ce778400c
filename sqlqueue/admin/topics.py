"""Topics: the list, and the page of a topic with its options and groups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from django.contrib import admin
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.operation import OperatedAdmin
from sqlqueue.admin.overview import OverviewRows
from sqlqueue.admin.topic_operations import TOPIC_OPERATIONS, SetOptions, as_text
from sqlqueue.conf import settings
from sqlqueue.core.settings import ACKED
from sqlqueue.models import Topic
from sqlqueue.operations.topics import pause, resume
from sqlqueue.stats.changes import change_advice, change_text, progress_text
from sqlqueue.stats.moments import moment
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import duration
from sqlqueue.stats.topics import TopicSurvey


@admin.register(Topic)
class TopicAdmin(OperatedAdmin):
    """The list of topics by name, dead-letter topics included, and the page of one."""

    list_display = ("name", "state", "partitions", "priorities", "kept", "history", "created_at")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)
    operations = TOPIC_OPERATIONS
    page_template = "topic"

    @admin.display(description=_("kept for"))
    def kept(self, topic: Topic) -> str:
        """Show the retention."""
        return as_text(topic.retention)

    def set_paused(self, row: Topic, paused: bool) -> bool:
        """Let no group read a topic, or let them again."""
        return (pause if paused else resume)(self.log, row.name)

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the topic's options and groups."""
        stats = survey(self.log, row.name)
        found = next((one for one in stats.topics if one.name == row.name), None)  # None: it holds dead letters
        fields = ((field.verbose_name, _shown(field, row)) for field in self.opts.fields)
        return row.name, {
            "topic": OverviewRows(request, self.log, stats).topic(found) if found else None,
            "change": _change(found) if found else [],
            "fields": [*fields, *_of_settings(row)],
            "notes": SetOptions(self, request, [row]).notes(),
        }


def _change(topic: TopicSurvey) -> list[str]:
    """Return what the page says of a change of the topic's partitions; nothing while none is under way."""
    name, change = topic.name, topic.change
    if change is None:
        return []
    return [change_text(name, change), progress_text(change.progress), change_advice(name, change)]


def _of_settings(topic: Topic) -> Iterator[tuple[object, object]]:
    """Yield the names and values of what this site's settings alone say, beyond the defaults."""
    options = settings.topic(topic.name)
    if options.retention_from == ACKED and topic.retention is not None:
        yield _("Retention counts from"), _("when every group has settled a message (by this site's settings)")
    if options.keep_collected is not None:
        text = _("%(time)s in a table (by this site's settings)") % {"time": duration(options.keep_collected)}
        yield _("What is collected is kept for"), text


def _shown(field: models.Field[Any, Any], topic: Topic) -> str:
    """Return a value of a topic as a text."""
    value = field.value_from_object(topic)
    if field.name == "retention":
        return as_text(value)
    if isinstance(field, models.DateTimeField):
        return moment(value)
    if isinstance(value, bool):
        return str(_("yes") if value else _("no"))
    return "–" if value in (None, "") else str(value)
