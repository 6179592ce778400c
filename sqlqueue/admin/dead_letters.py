"""Dead letters: grouped by failure, listed, replayed and discarded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, DELETION
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from sqlqueue.admin.cells import harmless
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import MOST_LISTED, Done, OperatedAdmin, Operation, Text
from sqlqueue.admin.pages import list_log, page_url, replica, show, user_name
from sqlqueue.core.bounds import LEAST_RATE, MOST_RATE
from sqlqueue.core.outcomes import storable
from sqlqueue.models import ConsumerGroup, DeadLetter, Topic, dead_letter_topic
from sqlqueue.operations.replay import discard
from sqlqueue.operations.replay_requests import request_replay
from sqlqueue.stats.dead_letters import MOST_READ, dead_letters, failures, has_more, topics_with_dead_letters
from sqlqueue.stats.search import messages_at

LISTED = (
    "offset",
    "topic",
    "partition",
    "partition_key",
    "message_id",
    "failed_at",
    "failed_group",
    "fingerprint",
    "original_topic",
)
MOST_DISCARDED = 10_000  # by one operation


class DeadLetterOperation(Operation):
    """An operation on dead letters of a topic: on these rows, or on all of one group ("": of any) and one fingerprint
    ("": of any)."""

    short: ClassVar[Text]  # the label where the page names the dead letters

    def __init__(self, model_admin: Any, request: HttpRequest, rows: Sequence[Any], data: Any = None) -> None:
        super().__init__(model_admin, request, rows, data)
        self.topic = rows[0].original_topic if rows else request.POST.get("topic", "")
        self.group, self.fingerprint = (storable(request.POST.get(name, "")) for name in ("group", "fingerprint"))
        self.offsets: list[int] | None = None
        if rows or "all" not in request.POST:
            self.offsets = found = sorted(row.offset for row in rows if row.original_topic == self.topic)
        else:
            found = dead_letters(
                self.log, self.topic, MOST_READ, group=self.group, fingerprint=self.fingerprint or None
            )
            self.rows, self.more = messages_at(self.log, found[:MOST_LISTED], *LISTED), has_more(self.log, self.topic)
        self.initial["through"], self.count = max(found, default=0), len(found)

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same dead letters again."""
        if self.offsets is not None:
            return [(ACTION_CHECKBOX_NAME, str(offset)) for offset in self.offsets]
        return [("topic", self.topic), ("group", self.group), ("fingerprint", self.fingerprint), ("all", "1")]

    @property
    def choice(self) -> str:
        """The chosen dead letters as a text: topic, group, fingerprint, offsets."""
        parts = [_("topic %s") % self.topic]
        if self.group:
            parts.append(_("group %s") % self.group)
        if self.fingerprint:
            parts.append(_("failure “%s”") % self.fingerprint)
        if self.offsets is not None:
            parts.append(_("offsets %s") % ", ".join(map(str, self.offsets)))
        return ", ".join(parts)


class Replay(DeadLetterOperation):
    """Deliver dead letters again, to the group in which they failed."""

    name = "replay"
    label, short = _("Replay dead letters"), _("Replay")
    explanation = _(
        "Each dead letter becomes a fresh message at the log's end, for the group in which it failed and no other, and "
        "is removed from the dead letters in the same transaction. Its attempts begin anew. The consumer processes "
        "carry the replay out, oldest dead letter first."
    )
    permissions = ("replay_message",)
    flag = ADDITION

    rate = forms.FloatField(
        label=_("Rate"),
        help_text=_("At most so many messages a second; empty: as fast as it goes."),
        required=False,
        min_value=LEAST_RATE,
        max_value=MOST_RATE,
    )
    trial = forms.BooleanField(
        label=_("First one as a trial"),
        help_text=_(
            "The others follow once the first one has been acknowledged, and not if it becomes a dead letter again."
        ),
        required=False,
        initial=True,
    )

    def run(self) -> Done:
        """Request a replay from the consumer processes."""
        made = request_replay(
            self.log,
            self.topic,
            group=self.group,
            fingerprint=self.fingerprint,
            offsets=self.offsets,
            rate=self.cleaned_data["rate"],
            trial=self.cleaned_data["trial"],
            requested_by=user_name(self.request)[:150],
        )
        text = _("Requested a replay of %(count)d dead letters: %(which)s.")
        url = page_url(self.request, "request", "change", made.pk)
        return Done(text % {"count": made.total, "which": self.choice}, [made], url)


class Discard(DeadLetterOperation):
    """Delete dead letters for good."""

    name = "discard"
    label, short = _("Discard dead letters"), _("Discard")
    explanation = _(
        "The dead letters are deleted for good, oldest first, at most 10,000 at once. Dead letters that are added from "
        "now on stay. The messages that they are copies of stay in the log, and count as settled for the group."
    )
    permissions = ("discard_message",)
    flag = DELETION
    dangerous = True

    reason = forms.CharField(label=_("Reason"), help_text=_("It is kept in the admin's log."), max_length=300)
    through = forms.IntegerField(widget=forms.HiddenInput, min_value=0)

    def run(self) -> Done:
        """Delete the chosen dead letters, up to the offset that the user has seen."""
        done = discard(
            self.topic,
            group=self.group,
            offsets=self.offsets,
            fingerprint=self.fingerprint,
            through=self.cleaned_data["through"],
            limit=MOST_DISCARDED,
            database=self.log.alias,
        )
        text = ngettext(
            "Discarded %(done)d dead letter (%(which)s). Reason: %(reason)s",
            "Discarded %(done)d dead letters (%(which)s). Reason: %(reason)s",
            done,
        ) % {"done": done, "which": self.choice, "reason": self.cleaned_data["reason"]}
        topic = Topic.objects.using(self.log.alias).get(name=dead_letter_topic(self.topic))
        left = urlencode({"topic": self.topic, "group": self.group})
        return Done(text, [topic], f"{self.model_admin.url('changelist')}?{left}")


@admin.register(DeadLetter)
class DeadLetterAdmin(OperatedAdmin):
    """The failures of dead letters, and the list of the dead letters of a failure, a group or a topic."""

    change_list_template = "admin/sqlqueue/dead_letter_list.html"
    list_display = ("offset", "failed_at", "failed_group", "partition_key", "failure")
    list_display_links = ("offset",)
    own_parameters = ("topic", "group", "fingerprint")
    operations = (Replay, Discard)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the dead letters among the messages."""
        return super().get_queryset(request).exclude(failed_group="")

    def get_urls(self) -> list[URLPattern]:
        """Add the list of dead letters: ?topic=, and if wanted &group= and &fingerprint=."""
        listed = self.admin_site.admin_view(self.list_view)
        return [path("list/", listed, name="sqlqueue_deadletter_list"), *super().get_urls()]

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the failures, most frequent first, of one topic or all and of one group or all."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        log = list_log(self.log, request)
        topics = topics_with_dead_letters(log)
        topic, group = request.GET.get("topic", ""), storable(request.GET.get("group", ""))
        topic = topic if topic in topics else ""
        groups = ConsumerGroup.objects.using(log.alias).order_by("consumer_group").distinct()
        context = {
            "found": failures(log, [topic] if topic else topics, group),
            "topics": topics,
            "groups": groups.values_list("consumer_group", flat=True),
            "topic": topic,
            "group": group,
            "most": MOST_READ,
            "operations": self.offered(request),
            "replica": replica(log),
        }
        return show(self, request, "dead_letters", _("Dead letters"), context)

    def list_view(self, request: HttpRequest) -> HttpResponse:
        """List dead letters of one topic, newest first, of one group or all and of one fingerprint or any."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        topic = request.GET.get("topic", "")
        if topic not in topics_with_dead_letters(list_log(self.log, request)):
            raise Http404
        fingerprint = request.GET.get("fingerprint")
        context = {
            "title": _("Dead letters of %s") % topic,
            "topic": topic,
            "group": request.GET.get("group", ""),
            "failure": _("without a fingerprint") if fingerprint == "" else fingerprint,
            "most": MOST_READ,
        }
        return super().changelist_view(request, context)

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return a page of the dead letters that the request asks for."""
        topic, fingerprint, start = request.GET.get("topic", ""), request.GET.get("fingerprint"), self.start(request)
        offsets = dead_letters(
            changes.log,
            topic,
            self.list_per_page + 1,
            group=storable(request.GET.get("group", "")),
            fingerprint=None if fingerprint is None else storable(fingerprint),
            before=start and start[1][0],
        )
        changes.more = has_more(changes.log, topic)  # type: ignore[attr-defined]
        rows = messages_at(changes.log, offsets[: self.list_per_page], *LISTED, "last_error")
        changes.next_start = self.start_after(rows[-1]) if len(offsets) > len(rows) else None
        return list(rows)

    def rows_of(self, request: HttpRequest, keys: Sequence[str]) -> Sequence[Any]:
        """Return the dead letters at these offsets."""
        return [row for row in messages_at(self.log, list(map(int, keys)), *LISTED) if row.failed_group]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Lead to the page of the message."""
        request.current_app = self.admin_site.name
        url = page_url(request, "message", "change", object_id)
        if not url:
            raise PermissionDenied
        return HttpResponseRedirect(url)

    @admin.display(description=_("failure"))
    def failure(self, message: Any) -> str:
        """Show the fingerprint, and below it the last error."""
        return format_html(
            "<details><summary>{}</summary>"
            '<pre class="sqlqueue-text" tabindex="0" role="group" aria-label="{}">{}</pre></details>',
            harmless(message.fingerprint or "") or _("without a fingerprint"),
            _("failure"),
            harmless(message.last_error or ""),
        )
