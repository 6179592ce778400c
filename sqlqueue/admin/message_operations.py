"""What may be done with messages in the log: one or many, of one topic or several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django import forms
from django.contrib.admin.models import DELETION
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from sqlqueue.admin.operation import Done, Operation, Text
from sqlqueue.core.bounds import MOST_ATTEMPTS
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.models import ConsumerGroup, Topic
from sqlqueue.operations.messages import Deleted, delete, unsettled
from sqlqueue.operations.reschedule import Changed, acknowledge, reprioritize, republish, reschedule
from sqlqueue.operations.topics import deletable_topic


class MessageOperation(Operation):
    """An operation on messages."""

    def fits(self) -> bool:
        """Tell whether the message is no dead letter, which has operations of its own."""
        return not (self.rows and self.rows[0].failed_group)

    @cached_property
    def topics(self) -> dict[str, list[int]]:
        """The offsets by topic."""
        found: dict[str, list[int]] = {}
        for message in self.rows:
            found.setdefault(message.topic, []).append(message.offset)
        return found

    @cached_property
    def readers(self) -> list[tuple[str, str]]:
        """The groups that read the topics: each group with a topic."""
        rows = ConsumerGroup.objects.using(self.log.alias).filter(topic__in=self.topics)
        return list(rows.order_by("consumer_group", "topic").values_list("consumer_group", "topic"))

    def totals(self, changed: Iterable[Changed]) -> dict[str, int]:
        """Return how many deliveries were changed, and how many of the messages were left alone."""
        done = sum(one.changed for one in changed)
        return {"done": done, "left": max(0, self.count - done)}


class GroupOperation(MessageOperation):
    """An operation on messages for one of the groups that read their topics."""

    group = forms.ChoiceField(
        label=_("Group"),
        help_text=_("one that reads the topic; a dead letter is replayed instead"),
    )

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        group: Any = self.fields["group"]
        group.choices = lambda: [(name, name) for name in dict.fromkeys(name for name, _topic in self.readers)]

    @property
    def chosen(self) -> list[tuple[str, list[int]]]:
        """The topics that the chosen group reads, each with its offsets."""
        return [(topic, self.topics[topic]) for name, topic in self.readers if name == self.cleaned_data["group"]]


class Republish(GroupOperation):
    """Publish copies of messages for one group."""

    name, label = "republish", _("Deliver again to a group")
    explanation = _(
        "The log stays as it is: each message is published once more, as a copy for this group alone, at the log's "
        "end, behind what its key has there. Its attempts begin anew."
    )
    permissions = ("redeliver_message",)

    delay = forms.FloatField(
        label=_("Delay"),
        help_text=_("Seconds from now; 0: at once."),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
    )
    priority = forms.IntegerField(
        label=_("Priority"),
        help_text=_("Lower goes first; empty: as it was."),
        required=False,
        min_value=0,
    )

    def run(self) -> Done:
        """Publish the copies, topic by topic."""
        values = self.cleaned_data
        options = {"priority": values["priority"], "delay": values["delay"], "database": self.log.alias}
        done = sum(republish(topic, values["group"], offsets, **options) for topic, offsets in self.chosen)
        text = ngettext(
            "%(done)d message is delivered again to the group %(group)s, in %(delay)g s.",
            "%(done)d messages are delivered again to the group %(group)s, in %(delay)g s.",
            done,
        )
        return Done(text % {**values, "done": done}, self.rows)


class Reschedule(Republish):
    """Set when deliveries that wait are due, their number of attempts, and their priority."""

    name, label = "reschedule", _("Reschedule for a group")
    explanation = _(
        "Deliveries that wait for a retry or for their time become due when you say. Messages that are in flight, that "
        "the group has not read yet, or that are settled are left alone. With another priority, each message is "
        "acknowledged for the group and published once more, as a copy for this group alone, also if the group has "
        "not read it yet."
    )
    permissions = ("reschedule_deliverystate",)

    attempts = forms.IntegerField(
        label=_("Attempts so far"),
        help_text=_("0: a fresh start; empty: as it is."),
        required=False,
        min_value=0,
        max_value=MOST_ATTEMPTS,
    )

    def clean(self) -> dict[str, Any]:
        """Refuse a number of attempts together with a priority: the copy begins with none."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("priority") is not None and values.get("attempts"):
            self.add_error(
                "attempts", _("With another priority the attempts begin anew: leave one of the two fields empty.")
            )
        return values

    def run(self) -> Done:
        """Reschedule the deliveries, topic by topic."""
        values = self.cleaned_data
        group, delay, priority, attempts = (values[name] for name in ("group", "delay", "priority", "attempts"))
        changed = [
            reschedule(self.log, group, topic, offsets, delay=delay, attempts=attempts)
            if priority is None
            else reprioritize(self.log, group, topic, offsets, priority, delay=delay)
            for topic, offsets in self.chosen
        ]
        text = _(
            "Rescheduled for the group %(group)s, due in %(delay)g s: %(done)d. Left alone, because they are in "
            "flight, not read yet, or settled: %(left)d."
        ) % {**values, **self.totals(changed)}
        if priority is not None:
            text += " " + _("New priority: %d.") % priority
        elif attempts is not None:
            text += " " + _("Attempts so far: %d.") % attempts
        return Done(text, self.rows)


class Acknowledge(GroupOperation):
    """Ack messages on behalf of a group."""

    name, label = "acknowledge", _("Acknowledge on behalf of a group")
    explanation = _(
        "The group never gets these messages (again); other groups do. Messages that are in flight are left alone. If "
        "the group has not read a message yet, its partition changes its owner, and what is in flight there is "
        "delivered again."
    )
    permissions = ("reschedule_deliverystate",)

    def run(self) -> Done:
        """Ack them, topic by topic."""
        group = self.cleaned_data["group"]
        changed = [acknowledge(self.log, group, topic, offsets) for topic, offsets in self.chosen]
        text = _(
            "Acknowledged on behalf of the group %(group)s: %(done)d. Left alone, because they are in flight or "
            "settled: %(left)d."
        )
        return Done(text % {"group": group, **self.totals(changed)}, self.rows)


class Cancel(MessageOperation):
    """Ack messages on behalf of all groups."""

    name, label = "cancel", _("Cancel for all groups")
    explanation = _(
        "No group gets these messages (again), whether it has not read them yet or they wait for another attempt. "
        "Messages that are in flight are left alone. The messages stay in the log."
    )
    permissions = ("redeliver_message",)
    dangerous = True

    def run(self) -> Done:
        """Ack them for each group of each topic."""
        done = sum(acknowledge(self.log, group, topic, self.topics[topic]).changed for group, topic in self.readers)
        text = ngettext(
            "Cancelled: %(done)d delivery will not take place.",
            "Cancelled: %(done)d deliveries will not take place.",
            done,
        )
        return Done(text % {"done": done}, self.rows)


class Delete(MessageOperation):
    """Delete messages from the log."""

    name, label = "delete", _("Delete from the log")
    explanation = _(
        "The messages are deleted for good, whatever their topic's retention. Their dead letters and receipts stay, "
        "and so do messages that are in flight. If a group has not read a message yet, its partition changes its "
        "owner, and what is in flight there is delivered again."
    )
    permissions = ("delete_message",)
    flag = DELETION
    dangerous = True

    reason = forms.CharField(label=_("Reason"), help_text=_("It is kept in the admin's log."), max_length=300)
    also_unsettled = forms.BooleanField(label=_("Also messages that groups have not settled"), required=False)

    def preview(self) -> Sequence[Text]:
        """Count what groups have not settled."""
        counts: dict[str, tuple[int, int]] = {}
        for topic, offsets in self.topics.items():
            for group, found in unsettled(self.log, topic, offsets).items():
                waiting, in_flight = counts.get(group, (0, 0))
                counts[group] = waiting + len(found.waiting), in_flight + len(found.in_flight)
        text = _("%(group)s: %(waiting)d not settled, %(in_flight)d in flight.")
        found_texts = [
            text % {"group": group, "waiting": waiting, "in_flight": in_flight}
            for group, (waiting, in_flight) in sorted(counts.items())
        ]
        return found_texts or [_("Every group has settled all of them.")]

    def run(self) -> Done:
        """Delete topic by topic; each topic has an entry of its own in Django's log."""
        values, total = self.cleaned_data, Deleted(0, 0, 0)
        for topic in self.topics:
            deletable_topic(self.log, topic)
        for topic, offsets in self.topics.items():
            done = delete(self.log, topic, offsets, also_unsettled=values["also_unsettled"])
            total = Deleted(*(sum(pair) for pair in zip(total, done)))
        text = _(
            "Deleted: %(deleted)d. Left alone, because a group has not settled them: %(unsettled)d; because they are "
            "in flight: %(in_flight)d."
        ) % {"deleted": total.deleted, "unsettled": total.unsettled, "in_flight": total.in_flight}
        entry = _("Deleted %(deleted)d of the messages at %(offsets)s. Reason: %(reason)s") % {
            "deleted": total.deleted,
            "offsets": ", ".join(str(message.offset) for message in self.rows),
            "reason": values["reason"],
        }
        topics = list(Topic.objects.using(self.log.alias).filter(name__in=self.topics))
        return Done(text, topics, self.model_admin.url("changelist"), entry)


MESSAGE_OPERATIONS = (Republish, Reschedule, Acknowledge, Cancel, Delete)
