"""What may be done with messages in the log: one or many, of one topic or several."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Any, ClassVar

from django import forms
from django.contrib.admin.models import DELETION
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.operation import Done, Operation
from sqlqueue.core.bounds import MOST_ATTEMPTS
from sqlqueue.exceptions import LONGEST_DELAY
from sqlqueue.models import ConsumerGroup, Topic
from sqlqueue.operations.delete import Deleted, delete, unsettled
from sqlqueue.operations.purge import deletable_topic
from sqlqueue.operations.republish import republish
from sqlqueue.operations.reschedule import Changed, acknowledge, reprioritize, reschedule


class GroupForm(forms.Form):
    """The group that an operation is for."""

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
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("priority") is not None and values.get("attempts"):
            self.add_error(
                "attempts", _("With another priority the attempts begin anew: leave one of the two fields empty.")
            )
        return values


class MessageOperation(Operation):
    """An operation on messages, for one group or for all."""

    form_class: ClassVar[type[forms.Form]] = GroupForm

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

    def form(self, data: Any = None) -> forms.Form:
        """Return the form, with the groups that read the topics."""
        form = self.form_class(data)
        group = form.fields.get("group")
        if isinstance(group, forms.ChoiceField):
            names = list(dict.fromkeys(name for name, _topic in self.readers))
            group.choices = [(name, name) for name in names]
            if not names:
                group.help_text = _("No group reads this topic. To deliver a dead letter again, replay it.")
        return form

    def topics_of(self, group: str) -> list[tuple[str, list[int]]]:
        """Return the topics that a group reads, each with its chosen offsets."""
        return [(topic, self.topics[topic]) for name, topic in self.readers if name == group]

    def totals(self, changed: Iterable[Changed]) -> dict[str, int]:
        """Return how many deliveries were changed, and how many of the messages were left alone."""
        done = sum(one.changed for one in changed)
        return {"done": done, "left": max(0, self.count - done)}


class Republish(MessageOperation):
    """Publish copies of messages for one group."""

    name, label = "republish", gettext_lazy("Deliver again to a group")
    explanation = gettext_lazy(
        "The log stays as it is: each message is published once more, as a copy for this group alone, at the log's "
        "end, behind what its key has there. Its attempts begin anew."
    )
    permissions = ("redeliver_message",)
    form_class = RepublishForm

    def run(self, form: Any) -> Done:
        """Publish the copies, topic by topic."""
        values = form.cleaned_data
        options = {"priority": values["priority"], "delay": values["delay"]}
        done = sum(
            republish(topic, values["group"], offsets, **options) for topic, offsets in self.topics_of(values["group"])
        )
        text = ngettext(
            "%(done)d message is delivered again to the group %(group)s, in %(delay)g s.",
            "%(done)d messages are delivered again to the group %(group)s, in %(delay)g s.",
            done,
        )
        return Done(text % {**values, "done": done}, self.rows)


class Reschedule(MessageOperation):
    """Set when deliveries that wait are due, their number of attempts, and their priority."""

    name, label = "reschedule", gettext_lazy("Reschedule for a group")
    explanation = gettext_lazy(
        "Deliveries that wait for a retry or for their time become due when you say. Messages that are in flight, that "
        "the group has not read yet, or that are settled are left alone. With another priority, each message is "
        "acknowledged for the group and published once more, as a copy for this group alone, also if the group has "
        "not read it yet."
    )
    permissions = ("reschedule_deliverystate",)
    form_class = RescheduleForm

    def run(self, form: Any) -> Done:
        """Reschedule the deliveries, topic by topic."""
        values = form.cleaned_data
        group, delay, priority, attempts = (values[name] for name in ("group", "delay", "priority", "attempts"))
        changed = [
            reschedule(self.log, group, topic, offsets, delay=delay, attempts=attempts)
            if priority is None
            else reprioritize(self.log, group, topic, offsets, priority, delay=delay)
            for topic, offsets in self.topics_of(group)
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


class Acknowledge(MessageOperation):
    """Ack messages on behalf of a group."""

    name, label = "acknowledge", gettext_lazy("Acknowledge on behalf of a group")
    explanation = gettext_lazy(
        "The group never gets these messages (again); other groups do. Messages that are in flight are left alone. If "
        "the group has not read a message yet, its partition changes its owner, and what is in flight there is "
        "delivered again."
    )
    permissions = ("reschedule_deliverystate",)

    def run(self, form: Any) -> Done:
        """Ack them, topic by topic."""
        group = form.cleaned_data["group"]
        changed = [acknowledge(self.log, group, topic, offsets) for topic, offsets in self.topics_of(group)]
        text = _(
            "Acknowledged on behalf of the group %(group)s: %(done)d. Left alone, because they are in flight or "
            "settled: %(left)d."
        )
        return Done(text % {"group": group, **self.totals(changed)}, self.rows)


class Cancel(MessageOperation):
    """Ack messages on behalf of all groups."""

    name, label = "cancel", gettext_lazy("Cancel for all groups")
    explanation = gettext_lazy(
        "No group gets these messages (again), whether it has not read them yet or they wait for another attempt. "
        "Messages that are in flight are left alone. The messages stay in the log."
    )
    permissions = ("redeliver_message",)
    form_class = forms.Form
    dangerous = True

    def run(self, form: Any) -> Done:
        """Ack them for each group of each topic."""
        done = sum(acknowledge(self.log, group, topic, self.topics[topic]).changed for group, topic in self.readers)
        text = ngettext(
            "Cancelled: %(done)d delivery will not take place.",
            "Cancelled: %(done)d deliveries will not take place.",
            done,
        )
        return Done(text % {"done": done}, self.rows)


class DeleteForm(forms.Form):
    """The reason, and whether messages that a group has not settled are deleted too."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), help_text=gettext_lazy("It is kept in the admin's log."), max_length=300
    )
    also_unsettled = forms.BooleanField(
        label=gettext_lazy("Also messages that groups have not settled"), required=False
    )


class Delete(MessageOperation):
    """Delete messages from the log."""

    name, label = "delete", gettext_lazy("Delete from the log")
    explanation = gettext_lazy(
        "The messages are deleted for good, whatever their topic's retention. Their dead letters and receipts stay, "
        "and so do messages that are in flight. If a group has not read a message yet, its partition changes its "
        "owner, and what is in flight there is delivered again."
    )
    permissions = ("delete_message",)
    form_class = DeleteForm
    flag = DELETION
    dangerous = True

    def preview(self, form: Any) -> list[str]:
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

    def run(self, form: Any) -> Done:
        """Delete topic by topic; each topic has an entry of its own in Django's log."""
        values, total = form.cleaned_data, Deleted(0, 0, 0)
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
