"""Actions on messages in the log: on one or many, of one topic or several."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django import forms
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.actions.base import MOST_LISTED, Action, log_action
from sqlqueue.core.bounds import MOST_ATTEMPTS
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations.republish import republish
from sqlqueue.operations.reschedule import Changed, acknowledge, reprioritize, reschedule
from sqlqueue.stats.search import messages_at

LISTED = ("offset", "topic", "partition", "priority", "partition_key", "message_id", "target_group", "created_at")


class GroupForm(forms.Form):
    """The group that an action is for."""

    group = forms.ChoiceField(label=gettext_lazy("Group"))


class RepublishForm(GroupForm):
    """The group, the delay in seconds, and the priority."""

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


class RescheduleForm(RepublishForm):
    """The same, and the number of attempts so far."""

    attempts = forms.IntegerField(
        label=gettext_lazy("Attempts so far"),
        help_text=gettext_lazy("0: a fresh start; empty: as it is."),
        required=False,
        min_value=0,
        max_value=MOST_ATTEMPTS,
    )

    def clean(self) -> dict[str, Any]:
        """Refuse a number of attempts together with a priority: the copy begins with none."""
        wanted: dict[str, Any] = super().clean() or self.cleaned_data
        if wanted.get("priority") is not None and wanted.get("attempts"):
            self.add_error(
                "attempts", _("With another priority the attempts begin anew: leave one of the two fields empty.")
            )
        return wanted


class MessageAction(Action):
    """An action on messages, for one group or for all."""

    form_class: type[forms.Form] = GroupForm

    def __init__(self, offsets: Iterable[int], success_url: str) -> None:
        self.messages = messages_at(current_log(), list(offsets), *LISTED)
        self.count, self.listed, self.success_url = len(self.messages), self.messages[:MOST_LISTED], success_url
        self.topics: dict[str, list[int]] = {}  # offsets by topic
        for message in self.messages:
            self.topics.setdefault(message.topic, []).append(message.offset)
        readers = ConsumerGroup.objects.using(current_log().alias).filter(topic__in=self.topics)
        self.readers = list(readers.order_by("consumer_group", "topic").values_list("consumer_group", "topic"))

    def form(self, data: Any = None) -> forms.Form:
        """Return the form, with the groups that read these topics."""
        form = self.form_class(data)
        group = form.fields.get("group")
        if isinstance(group, forms.ChoiceField):
            names = list(dict.fromkeys(name for name, _topic in self.readers))
            group.choices = [(name, name) for name in names]
            if not names:
                group.help_text = _("No group reads this topic. To deliver a dead letter again, replay it.")
        return form

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what chooses the same messages again."""
        return [(ACTION_CHECKBOX_NAME, message.offset) for message in self.messages]

    def topics_of(self, group: str) -> list[tuple[str, list[int]]]:
        """Return the topics that a group reads, each with its chosen offsets."""
        return [(topic, self.topics[topic]) for name, topic in self.readers if name == group]

    def totals(self, changed: Iterable[Changed]) -> tuple[int, int]:
        """Return how many deliveries were changed, and how many of the messages were left alone."""
        done = sum(one.changed for one in changed)
        return done, max(0, self.count - done)


class Republish(MessageAction):
    """Publish copies of messages for one group."""

    name = "republish"
    label = gettext_lazy("Deliver again to a group")
    explanation = gettext_lazy(
        "The log stays as it is: each message is published once more, as a copy for this group alone, at the log's "
        "end, behind what its key has there. Its attempts begin anew."
    )
    permissions = ("redeliver_message",)
    form_class = RepublishForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation for each topic that the group reads."""
        group, delay, priority = wanted["group"], wanted["delay"], wanted["priority"]
        done = sum(
            republish(topic, group, offsets, priority=priority, delay=delay) for topic, offsets in self.topics_of(group)
        )
        sentence = ngettext(
            "%(done)d message is delivered again to the group %(group)s, in %(delay)g s.",
            "%(done)d messages are delivered again to the group %(group)s, in %(delay)g s.",
            done,
        ) % {"done": done, "group": group, "delay": delay}
        log_action(request, self.messages, CHANGE, sentence)
        return sentence


class Reschedule(MessageAction):
    """Set when deliveries that wait are due, their number of attempts, and their priority."""

    name = "reschedule"
    label = gettext_lazy("Reschedule for a group")
    explanation = gettext_lazy(
        "Deliveries that wait for a retry or for their time become due when you say. Messages that are in flight, that "
        "the group has not read yet, or that are settled are left alone. With another priority, each message is "
        "acknowledged for the group and published once more, as a copy for this group alone, also if the group has "
        "not read it yet."
    )
    permissions = ("reschedule_deliverystate",)
    form_class = RescheduleForm

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation for each topic that the group reads."""
        log, group, delay, priority = current_log(), wanted["group"], wanted["delay"], wanted["priority"]
        changed: list[Changed] = []
        for topic, offsets in self.topics_of(group):
            if priority is None:
                done = reschedule(log, group, topic, offsets, delay=delay, attempts=wanted["attempts"])
            else:
                done = reprioritize(log, group, topic, offsets, priority, delay=delay)
            changed.append(done)
        rescheduled, left = self.totals(changed)
        sentence = _(
            "Rescheduled for the group %(group)s, due in %(delay)g s: %(done)d. Left alone, because they are in "
            "flight, not read yet, or settled: %(left)d."
        ) % {"group": group, "delay": delay, "done": rescheduled, "left": left}
        if priority is not None:
            sentence += " " + _("New priority: %d.") % priority
        elif wanted["attempts"] is not None:
            sentence += " " + _("Attempts so far: %d.") % wanted["attempts"]
        log_action(request, self.messages, CHANGE, sentence)
        return sentence


class Acknowledge(MessageAction):
    """Ack messages on behalf of a group."""

    name = "acknowledge"
    label = gettext_lazy("Acknowledge on behalf of a group")
    explanation = gettext_lazy(
        "The group never gets these messages (again); other groups do. Messages that are in flight are left alone. If "
        "the group has not read a message yet, its partition changes its owner, and what is in flight there is "
        "delivered again."
    )
    permissions = ("reschedule_deliverystate",)

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation for each topic that the group reads."""
        group = wanted["group"]
        done, left = self.totals(
            acknowledge(current_log(), group, topic, offsets) for topic, offsets in self.topics_of(group)
        )
        sentence = _(
            "Acknowledged on behalf of the group %(group)s: %(done)d. Left alone, because they are in flight or "
            "settled: %(left)d."
        ) % {"group": group, "done": done, "left": left}
        log_action(request, self.messages, CHANGE, sentence)
        return sentence


class Cancel(MessageAction):
    """Ack messages on behalf of all groups."""

    name = "cancel"
    label = gettext_lazy("Cancel for all groups")
    explanation = gettext_lazy(
        "No group gets these messages (again), whether it has not read them yet or they wait for another attempt. "
        "Messages that are in flight are left alone. The messages stay in the log."
    )
    permissions = ("redeliver_message",)
    form_class = forms.Form
    dangerous = True

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation for each group of each topic."""
        done = sum(
            acknowledge(current_log(), group, topic, self.topics[topic]).changed for group, topic in self.readers
        )
        sentence = ngettext(
            "Cancelled: %(done)d delivery will not take place.",
            "Cancelled: %(done)d deliveries will not take place.",
            done,
        ) % {"done": done}
        log_action(request, self.messages, CHANGE, sentence)
        return sentence


MESSAGE_ACTIONS: dict[str, type[MessageAction]] = {
    action.name: action for action in (Republish, Reschedule, Acknowledge, Cancel)
}
