"""Topics: the list, the page of one with its options and groups, and what may be done with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from sqlqueue.admin.cells import MomentField
from sqlqueue.admin.operation import LOCK_TIMEOUT, Done, OperatedAdmin, Operation, Pause, Resume, Text
from sqlqueue.admin.overriding import Override
from sqlqueue.admin.overview import OverviewRows
from sqlqueue.conf import settings
from sqlqueue.core.bounds import CENTURY
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.settings import ACKED, HISTORIES
from sqlqueue.log.status import offset_before
from sqlqueue.log.topic_options import CHANGEABLE, differences, override
from sqlqueue.models import Topic
from sqlqueue.operations.topics import delete_purged, pause, preview, purge, resume
from sqlqueue.stats.survey import survey
from sqlqueue.stats.texts import duration, moment
from sqlqueue.stats.topics import TopicSurvey, change_advice, change_text, progress_text

DELETED_AT_ONCE = 10  # batches of 1,000 messages: the rest is deleted by the consumer processes


def as_text(value: Any) -> str:
    """Return an option's value as a text."""
    if value is None:
        return str(_("for ever"))
    return duration(value) if isinstance(value, float) else str(value)


class SetOptions(Override):
    """Override a topic's retention and history."""

    name, label = "options", _("Options")
    explanation = _(
        "A topic follows the settings whenever runconsumers starts. An override made here stays until it is removed; "
        "then the settings hold at once."
    )
    permissions = ("change_topic",)
    who = _("The settings say")
    as_text = staticmethod(as_text)

    def read(self) -> tuple[Mapping[str, forms.Field], Mapping[str, Any], Mapping[str, Any]]:
        """Return the options that can be overridden: dead letters are kept until they are replayed or discarded."""
        fields: dict[str, forms.Field] = {
            "retention": forms.FloatField(
                label=_("Retention"),
                help_text=_("seconds; empty: for ever"),
                min_value=0,
                max_value=CENTURY,
                required=False,
            ),
            "history": forms.ChoiceField(
                label=_("History"),
                help_text=_("which receipts are written"),
                choices=[(name, name) for name in HISTORIES],
                required=False,
            ),
        }
        [topic] = self.rows
        if topic.name.endswith(DEAD_LETTER_SUFFIX):
            del fields["retention"]
        declared = settings.topic(topic.name)
        return (
            fields,
            {name: getattr(declared, name) for name in CHANGEABLE},
            {name: getattr(topic, name) for name in topic.overridden},
        )

    def notes(self) -> list[str]:
        """Return a sentence for each option that is overridden, or that the settings will change."""
        text = _("%(option)s is %(now)s. The settings say: %(value)s, from the next start of runconsumers on.")
        return super().notes() + [
            text % {"option": self.options[one.option].label, "now": as_text(one.stored), "value": as_text(one.wanted)}
            for one in differences(self.rows[0])
            if not one.overridden
        ]

    def run(self) -> Done:
        """Replace the topic's overrides."""
        if not override(self.log, self.rows[0].name, self.overrides):
            return Done(_("Nothing was changed."))
        return Done(self.changes or _("It is as the settings say."), self.rows)


class Purge(Operation):
    """Delete a topic's messages before their retention is over."""

    name, label = "purge", _("Purge")
    explanation = _(
        "Deletes messages before their retention is over. In each partition, messages that every group has settled are "
        "deleted, up to the first one that some group has not settled. That one and those behind it are deleted as "
        "soon as they are settled, or now, if you choose so."
    )
    permissions = ("purge_topic",)
    flag = DELETION
    dangerous, several, counts = True, False, True

    time = MomentField(
        label=_("Published before"),
        help_text=_("in this site's time zone, to within some seconds"),
        required=False,
    )
    through = forms.IntegerField(
        label=_("or up to offset"),
        help_text=_("both empty: all present messages"),
        min_value=0,
        max_value=2**63 - 1,
        required=False,
    )
    unsettled = forms.BooleanField(label=_("Also messages that groups have not settled"), required=False)

    def clean(self) -> dict[str, Any]:
        """Refuse both a time and an offset."""
        if self.cleaned_data.get("time") is not None and self.cleaned_data.get("through") is not None:
            raise forms.ValidationError(_("Give either an offset or a time."))
        return self.cleaned_data

    def fits(self) -> bool:
        """Tell whether the topic holds no dead letters, which are discarded instead."""
        return not self.rows[0].name.endswith(DEAD_LETTER_SUFFIX)

    def _through(self) -> int | None:
        """Return up to which offset; None: all present messages."""
        given: int | None = self.cleaned_data["through"]
        return given if self.cleaned_data["time"] is None else offset_before(self.log, self.cleaned_data["time"])

    def preview(self) -> Sequence[Text]:
        """Count the messages, and those that groups have not settled."""
        counted = preview(self.log, self.rows[0].name, self._through())
        also_unsettled = self.cleaned_data["unsettled"]
        self.pinned = {"through": counted.through, **({"unsettled": "on"} if also_unsettled else {})}
        self.button = _("Purge up to offset %(offset)s") % {"offset": counted.through}
        about = "≈ " if counted.estimated else ""
        texts: list[Text] = [
            about
            + ngettext(
                "There is %(count)s message up to there.",
                "There are %(count)s messages up to there.",
                counted.messages,
            )
            % {"count": counted.messages}
        ]
        for group, count in counted.unsettled.items():
            text = ngettext(
                "%(group)s has not settled %(count)s of them.", "%(group)s has not settled %(count)s of them.", count
            )
            texts.append((about if count else "") + text % {"group": group, "count": count})
        if not counted.unsettled:
            texts.append(_("No group reads this topic."))
        if any(counted.unsettled.values()):
            texts.append(
                _(
                    "Unsettled messages are never delivered. Partitions change their owners; handlers that are running "
                    "finish, and their outcomes are ignored. An archive that has not read these messages will not have "
                    "them."
                )
                if also_unsettled
                else _(
                    "Unsettled messages stay until they are settled, and so do the messages behind them in their "
                    "partition."
                )
            )
        return [*texts, _("Dead letters, receipts, scheduled messages and work items stay.")]

    def run(self) -> Done:
        """Purge it, and delete what can be deleted quickly."""
        name, unsettled = self.rows[0].name, self.cleaned_data["unsettled"]
        done = purge(self.log, name, through=self._through(), unsettled=unsettled, timeout=LOCK_TIMEOUT)
        deleted, more = delete_purged(self.log, name, DELETED_AT_ONCE)
        text = _("Purged up to offset %(offset)d; deleted at once: %(deleted)d.") % {
            "offset": done.through,
            "deleted": deleted,
        }
        if done.skipped:
            text += " " + _("Groups that skip messages they had not settled: %s.") % ", ".join(done.skipped)
        if more:
            text += " " + _("The consumer processes delete the rest.")
        return Done(text, self.rows)


@admin.register(Topic)
class TopicAdmin(OperatedAdmin):
    """The list of topics by name, dead-letter topics included, and the page of one."""

    list_display = ("name", "state", "partitions", "priorities", "kept", "history", "created_at")
    list_filter = ("paused",)
    search_fields = ("=name",)
    key = ("name",)
    operations = (Pause, Resume, SetOptions, Purge)
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
