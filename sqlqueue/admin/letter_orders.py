"""What can be done with dead letters: one, a selection, all that failed alike, or all that a filter shows."""

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

from sqlqueue.admin.orders import MOST_LISTED, Order, note
from sqlqueue.conf import settings
from sqlqueue.log import replay
from sqlqueue.log.letters import MOST_READ, has_more, letters
from sqlqueue.log.redrive import Choice, discard
from sqlqueue.log.search import messages_at
from sqlqueue.models import Topic, dead_letter_topic

LISTED = ("offset", "topic", "partition", "partition_key", "message_id", "failed_at", "failed_group", "fingerprint")
MOST_DISCARDED = 10_000  # with one order


class ReplayForm(forms.Form):
    """How fast, and is the first one a trial?"""

    rate = forms.FloatField(
        label=gettext_lazy("Rate"),
        help_text=gettext_lazy("At most so many messages a second; empty: as fast as it goes."),
        required=False,
        min_value=replay.LEAST_RATE,
        max_value=replay.MOST_RATE,
    )
    trial = forms.BooleanField(
        label=gettext_lazy("First one as a trial"),
        help_text=gettext_lazy("The others follow once the first one has been acknowledged, and not if it dies again."),
        required=False,
        initial=True,
    )


class DiscardForm(forms.Form):
    """Why?"""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), help_text=gettext_lazy("It is kept in the admin's log."), max_length=300
    )
    through = forms.IntegerField(widget=forms.HiddenInput, min_value=0)


class LetterOrder(Order):
    """Something to be done with dead letters of a topic: those at these offsets (None: wherever they stand), of one
    group or all (""), of one fingerprint or any ("")."""

    form_class: type[forms.Form]
    short: ClassVar[str | Promise]  # the label, beside the dead letters' name

    def __init__(
        self, topic: str, group: str, fingerprint: str, offsets: Sequence[int] | None, done_at: str, site: str
    ) -> None:
        alias = settings.DATABASE
        self.topic, self.group, self.fingerprint, self.offsets = topic, group, fingerprint, offsets
        if offsets is None:
            some = letters(alias, topic, MOST_READ, group=group, fingerprint=fingerprint or None)
            self.more = has_more(alias, topic)
        else:
            chosen = Choice(topic, group, fingerprint, offsets).letters(alias)
            some = sorted((at for letters in chosen for at in letters.values_list("offset", flat=True)), reverse=True)
        self.through, self.count = max(some, default=0), len(some)
        self.listed = messages_at(alias, some[:MOST_LISTED], *LISTED)
        self.done_at, self.site = done_at, site

    def form(self, data: Any = None) -> forms.Form:
        """Remember up to where the letters were seen."""
        return self.form_class(data, initial={"through": self.through})

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Which letters."""
        which = [("topic", self.topic), ("group", self.group), ("fingerprint", self.fingerprint)]
        if self.offsets is None:
            return [*which, ("all", "1")]
        return [*which, *((ACTION_CHECKBOX_NAME, offset) for offset in self.offsets)]

    @property
    def which(self) -> str:
        """The choice in words."""
        words = [_("topic %s") % self.topic]
        if self.group:
            words.append(_("group %s") % self.group)
        if self.fingerprint:
            words.append(_("failure “%s”") % self.fingerprint)
        if self.offsets is not None:
            words.append(_("offsets %s") % ", ".join(map(str, self.offsets)))
        return ", ".join(words)


class ReplayLetters(LetterOrder):
    """Deliver them again."""

    name = "replay"
    label, short = gettext_lazy("Replay dead letters"), gettext_lazy("Replay")
    explanation = gettext_lazy(
        "Each dead letter becomes a fresh message at the log's end, for the group that it died for and no other, and "
        "leaves the dead letters in the same transaction. Its attempts begin anew. The consumer processes do it, "
        "oldest first."
    )
    permissions = ("replay_message",)
    form_class = ReplayForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Order a replay."""
        made = replay.order(
            settings.DATABASE,
            self.topic,
            group=self.group,
            fingerprint=self.fingerprint,
            offsets=self.offsets,
            rate=wanted["rate"],
            trial=wanted["trial"],
            ordered_by=request.user.get_username()[:150],
        )
        self.done_at = reverse(f"{self.site}:sqlqueue_replay_change", args=[made.pk])
        sentence = _("Ordered a replay of %(count)d dead letters: %(which)s.") % {
            "count": made.total,
            "which": self.which,
        }
        note(request, [made], ADDITION, sentence)
        return sentence


class DiscardLetters(LetterOrder):
    """Delete them for good."""

    name = "discard"
    label, short = gettext_lazy("Discard dead letters"), gettext_lazy("Discard")
    explanation = gettext_lazy(
        "The dead letters are deleted for good, oldest first, at most 10,000 with one order; those that die from now "
        "on are not touched. The messages that they are copies of stay in the log, and count as settled for the group."
    )
    permissions = ("discard_message",)
    form_class = DiscardForm
    dangerous = True

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Delete what was seen."""
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
        graveyard = Topic.objects.using(settings.DATABASE).get(name=dead_letter_topic(self.topic))
        note(request, [graveyard], DELETION, sentence)
        return sentence


LETTER_ORDERS: dict[str, type[LetterOrder]] = {kind.name: kind for kind in (ReplayLetters, DiscardLetters)}
