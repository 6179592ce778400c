"""Actions on dead letters: on one, on those that are ticked, on all of one failure, or on all that a filter shows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django import forms
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import ADDITION, DELETION
from django.http import HttpRequest
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.actions.base import MOST_LISTED, Action, log_action
from sqlqueue.admin.pages import user_name
from sqlqueue.core.bounds import LEAST_RATE, MOST_RATE
from sqlqueue.database.log import current_log
from sqlqueue.models import Topic, dead_letter_topic
from sqlqueue.operations import replay_requests
from sqlqueue.operations.replay import DeadLetterSelection, discard
from sqlqueue.stats.dead_letters import MOST_READ, dead_letters, has_more
from sqlqueue.stats.search import messages_at

LISTED = ("offset", "topic", "partition", "partition_key", "message_id", "failed_at", "failed_group", "fingerprint")
MOST_DISCARDED = 10_000  # by one action


class ReplayForm(forms.Form):
    """The rate of a replay, and whether its first message is a trial."""

    rate = forms.FloatField(
        label=gettext_lazy("Rate"),
        help_text=gettext_lazy("At most so many messages a second; empty: as fast as it goes."),
        required=False,
        min_value=LEAST_RATE,
        max_value=MOST_RATE,
    )
    trial = forms.BooleanField(
        label=gettext_lazy("First one as a trial"),
        help_text=gettext_lazy(
            "The others follow once the first one has been acknowledged, and not if it becomes a dead letter again."
        ),
        required=False,
        initial=True,
    )


class DiscardForm(forms.Form):
    """The reason, and up to which offset the user has seen dead letters."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), help_text=gettext_lazy("It is kept in the admin's log."), max_length=300
    )
    through = forms.IntegerField(widget=forms.HiddenInput, min_value=0)


class DeadLetterAction(Action):
    """An action on dead letters of a topic: those at these offsets (None: at any), of one group ("": of any), of one
    fingerprint ("": of any)."""

    form_class: type[forms.Form]
    short: ClassVar[str | Promise]  # the label where the page names the dead letters

    def __init__(
        self, topic: str, group: str, fingerprint: str, offsets: Sequence[int] | None, success_url: str, site: str
    ) -> None:
        log = current_log()
        self.topic, self.group, self.fingerprint, self.offsets = topic, group, fingerprint, offsets
        if offsets is None:
            found = dead_letters(log, topic, MOST_READ, group=group, fingerprint=fingerprint or None)
            self.more = has_more(log, topic)
        else:
            querysets = DeadLetterSelection(topic, group, fingerprint, offsets).querysets(log)
            found = sorted(
                (offset for rows in querysets for offset in rows.values_list("offset", flat=True)), reverse=True
            )
        self.through, self.count = max(found, default=0), len(found)
        self.listed = messages_at(log, found[:MOST_LISTED], *LISTED)
        self.success_url, self.site = success_url, site

    def form(self, data: Any = None) -> forms.Form:
        """Return the form, with the highest offset that the user sees now."""
        return self.form_class(data, initial={"through": self.through})

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same dead letters again."""
        which = [("topic", self.topic), ("group", self.group), ("fingerprint", self.fingerprint)]
        if self.offsets is None:
            return [*which, ("all", "1")]
        return [*which, *((ACTION_CHECKBOX_NAME, offset) for offset in self.offsets)]

    @property
    def which(self) -> str:
        """The choice as a text: topic, group, fingerprint, offsets."""
        parts = [_("topic %s") % self.topic]
        if self.group:
            parts.append(_("group %s") % self.group)
        if self.fingerprint:
            parts.append(_("failure “%s”") % self.fingerprint)
        if self.offsets is not None:
            parts.append(_("offsets %s") % ", ".join(map(str, self.offsets)))
        return ", ".join(parts)


class ReplayDeadLetters(DeadLetterAction):
    """Deliver dead letters again, to the group in which they failed."""

    name = "replay"
    label, short = gettext_lazy("Replay dead letters"), gettext_lazy("Replay")
    explanation = gettext_lazy(
        "Each dead letter becomes a fresh message at the log's end, for the group in which it failed and no other, and "
        "is removed from the dead letters in the same transaction. Its attempts begin anew. The consumer processes "
        "carry the replay out, oldest dead letter first."
    )
    permissions = ("replay_message",)
    form_class = ReplayForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Request a replay from the consumer processes."""
        made = replay_requests.request_replay(
            current_log(),
            self.topic,
            group=self.group,
            fingerprint=self.fingerprint,
            offsets=self.offsets,
            rate=wanted["rate"],
            trial=wanted["trial"],
            requested_by=user_name(request)[:150],
        )
        self.success_url = reverse(f"{self.site}:sqlqueue_request_change", args=[made.pk])
        sentence = _("Requested a replay of %(count)d dead letters: %(which)s.") % {
            "count": made.total,
            "which": self.which,
        }
        log_action(request, [made], ADDITION, sentence)
        return sentence


class DiscardDeadLetters(DeadLetterAction):
    """Delete dead letters for good."""

    name = "discard"
    label, short = gettext_lazy("Discard dead letters"), gettext_lazy("Discard")
    explanation = gettext_lazy(
        "The dead letters are deleted for good, oldest first, at most 10,000 at once. Dead letters that are added from "
        "now on stay. The messages that they are copies of stay in the log, and count as settled for the group."
    )
    permissions = ("discard_message",)
    form_class = DiscardForm
    dangerous = True

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Delete the chosen dead letters, up to the offset that the user has seen."""
        done = discard(
            self.topic,
            group=self.group,
            offsets=self.offsets,
            fingerprint=self.fingerprint,
            through=wanted["through"],
            limit=MOST_DISCARDED,
        )
        sentence = ngettext(
            "Discarded %(done)d dead letter (%(which)s). Reason: %(reason)s",
            "Discarded %(done)d dead letters (%(which)s). Reason: %(reason)s",
            done,
        ) % {"done": done, "which": self.which, "reason": wanted["reason"]}
        topic = Topic.objects.using(current_log().alias).get(name=dead_letter_topic(self.topic))
        log_action(request, [topic], DELETION, sentence)
        return sentence


DEAD_LETTER_ACTIONS: dict[str, type[DeadLetterAction]] = {
    action.name: action for action in (ReplayDeadLetters, DiscardDeadLetters)
}
