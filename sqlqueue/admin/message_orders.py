"""What can be done with messages that stand in the log, one or many, of one topic or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.orders import MOST_LISTED, Order, note
from sqlqueue.conf import settings
from sqlqueue.core.bounds import MOST_ATTEMPTS
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.log.redeliver import redeliver
from sqlqueue.log.reschedule import Changed, acknowledge, reprioritize, reschedule
from sqlqueue.log.search import messages_at
from sqlqueue.models import ConsumerGroup

LISTED = ("offset", "topic", "partition", "priority", "partition_key", "message_id", "target_group", "created_at")


class GroupForm(forms.Form):
    """For which group?"""

    group = forms.ChoiceField(label=gettext_lazy("Group"))


class RedeliverForm(GroupForm):
    """For which group, when, and how urgent?"""

    delay = forms.FloatField(
        label=gettext_lazy("Delay"),
        help_text=gettext_lazy("Seconds from now; 0: at once."),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
    )
    priority = forms.IntegerField(
        label=gettext_lazy("Priority"),
        help_text=gettext_lazy("Lower goes first; empty: as it was."),
        required=False,
        min_value=0,
    )


class RescheduleForm(RedeliverForm):
    """The same, and how many attempts it has had."""

    attempts = forms.IntegerField(
        label=gettext_lazy("Attempts so far"),
        help_text=gettext_lazy("0: a fresh start; empty: as it is."),
        required=False,
        min_value=0,
        max_value=MOST_ATTEMPTS,
    )

    def clean(self) -> dict[str, Any]:
        """A copy always begins anew."""
        wanted: dict[str, Any] = super().clean() or self.cleaned_data
        if wanted.get("priority") is not None and wanted.get("attempts"):
            self.add_error(
                "attempts", _("With another priority the attempts begin anew: leave one of the two fields empty.")
            )
        return wanted


class MessageOrder(Order):
    """Something to be done with messages, for one group or for all."""

    form_class: type[forms.Form] = GroupForm

    def __init__(self, offsets: Iterable[int], done_at: str) -> None:
        self.messages = messages_at(settings.DATABASE, list(offsets), *LISTED)
        self.count, self.listed, self.done_at = len(self.messages), self.messages[:MOST_LISTED], done_at
        self.topics: dict[str, list[int]] = {}
        for message in self.messages:
            self.topics.setdefault(message.topic, []).append(message.offset)
        readers = ConsumerGroup.objects.using(settings.DATABASE).filter(topic__in=self.topics)
        self.readers = list(readers.order_by("consumer_group", "topic").values_list("consumer_group", "topic"))

    def form(self, data: Any = None) -> forms.Form:
        """Offer the groups that read these topics."""
        form = self.form_class(data)
        group = form.fields.get("group")
        if isinstance(group, forms.ChoiceField):
            names = list(dict.fromkeys(name for name, _topic in self.readers))
            group.choices = [(name, name) for name in names]
            if not names:
                group.help_text = _("No group reads this. A dead letter is delivered again by replaying it.")
        return form

    def hidden(self) -> Iterable[tuple[str, object]]:
        """The messages."""
        return [(ACTION_CHECKBOX_NAME, message.offset) for message in self.messages]

    def places(self, group: str) -> list[tuple[str, list[int]]]:
        """Return the topics that a group reads, with the offsets that were chosen there."""
        return [(topic, self.topics[topic]) for name, topic in self.readers if name == group]

    def left(self, changed: Iterable[Changed]) -> tuple[int, int]:
        """Return how many deliveries were changed, and how many of the messages were not."""
        done = sum(one.changed for one in changed)
        return done, max(0, self.count - done)


class Redeliver(MessageOrder):
    """Deliver once more, to one group."""

    name = "redeliver"
    label = gettext_lazy("Deliver again to a group")
    explanation = gettext_lazy(
        "The log stays as it is: each message is published once more, as a copy for this group alone, at the log's "
        "end, behind what its key has there. Its attempts begin anew."
    )
    permissions = ("redeliver_message",)
    form_class = RedeliverForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the verb for every topic that the group reads."""
        group, delay, priority = wanted["group"], wanted["delay"], wanted["priority"]
        done = sum(
            redeliver(topic, group, offsets, priority=priority, delay=delay) for topic, offsets in self.places(group)
        )
        sentence = ngettext(
            "%(done)d message is delivered again to the group %(group)s, in %(delay)g s.",
            "%(done)d messages are delivered again to the group %(group)s, in %(delay)g s.",
            done,
        ) % {"done": done, "group": group, "delay": delay}
        note(request, self.messages, CHANGE, sentence)
        return sentence


class Reschedule(MessageOrder):
    """Decide when deliveries that wait are due, with how many attempts, and how urgent they are."""

    name = "reschedule"
    label = gettext_lazy("Reschedule for a group")
    explanation = gettext_lazy(
        "Deliveries that wait, for a retry or their time, become due when you say. What a handler has in hand, what "
        "the group has not read yet and what is done is left alone. With another priority, each is acknowledged for "
        "the group and published once more, as a copy for this group alone, also what it has not read yet."
    )
    permissions = ("reschedule_deliverystate",)
    form_class = RescheduleForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the verb for every topic that the group reads."""
        alias, group, delay, priority = settings.DATABASE, wanted["group"], wanted["delay"], wanted["priority"]
        changed: list[Changed] = []
        for topic, offsets in self.places(group):
            if priority is None:
                done = reschedule(alias, group, topic, offsets, delay=delay, attempts=wanted["attempts"])
            else:
                done = reprioritize(alias, group, topic, offsets, priority, delay=delay)
            changed.append(done)
        done_now, left = self.left(changed)
        sentence = _(
            "Rescheduled for the group %(group)s, due in %(delay)g s: %(done)d. Left alone, because they are in hand, "
            "not read yet, or done: %(left)d."
        ) % {"group": group, "delay": delay, "done": done_now, "left": left}
        if priority is not None:
            sentence += " " + _("New priority: %d.") % priority
        elif wanted["attempts"] is not None:
            sentence += " " + _("Attempts so far: %d.") % wanted["attempts"]
        note(request, self.messages, CHANGE, sentence)
        return sentence


class Acknowledge(MessageOrder):
    """Say on behalf of a group that it is done."""

    name = "acknowledge"
    label = gettext_lazy("Acknowledge on behalf of a group")
    explanation = gettext_lazy(
        "The group never gets these messages (again); other groups do. What a handler has in hand just now is left "
        "alone. If the group has not read a message yet, its partition changes its owner, and what is in hand there is "
        "delivered again."
    )
    permissions = ("reschedule_deliverystate",)

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the verb for every topic that the group reads."""
        group = wanted["group"]
        places = self.places(group)
        done, left = self.left(acknowledge(settings.DATABASE, group, topic, offsets) for topic, offsets in places)
        sentence = _(
            "Acknowledged on behalf of the group %(group)s: %(done)d. Left alone, because they are in hand or done: "
            "%(left)d."
        ) % {"group": group, "done": done, "left": left}
        note(request, self.messages, CHANGE, sentence)
        return sentence


class Cancel(MessageOrder):
    """Say on behalf of all groups that it is done."""

    name = "cancel"
    label = gettext_lazy("Cancel for all groups")
    explanation = gettext_lazy(
        "No group gets these messages (again), whether it has not read them yet or they wait for another attempt. What "
        "a handler has in hand just now is left alone. The messages stay in the log."
    )
    permissions = ("redeliver_message",)
    form_class = forms.Form
    dangerous = True

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the verb for every group of every topic."""
        done = sum(
            acknowledge(settings.DATABASE, group, topic, self.topics[topic]).changed for group, topic in self.readers
        )
        sentence = ngettext(
            "Cancelled: %(done)d delivery will not take place.",
            "Cancelled: %(done)d deliveries will not take place.",
            done,
        ) % {"done": done}
        note(request, self.messages, CHANGE, sentence)
        return sentence


MESSAGE_ORDERS: dict[str, type[MessageOrder]] = {
    kind.name: kind for kind in (Redeliver, Reschedule, Acknowledge, Cancel)
}
