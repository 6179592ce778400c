"""What may be done with a group: pause it, override its hours and limits, move it, reschedule many deliveries, remove
it."""

from __future__ import annotations

import json
from typing import Any

from django import forms
from django.contrib.admin.models import ADDITION, DELETION
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.operation import LOCK_TIMEOUT, Done, Operation, Pause, Resume
from sqlqueue.admin.overriding import Options, OverrideForm
from sqlqueue.admin.pages import page_url, user_name
from sqlqueue.admin.times import MomentField
from sqlqueue.core.active_hours import HOURS_LENGTH
from sqlqueue.core.bounds import LEAST_RATE, MOST_ATTEMPTS, MOST_RATE
from sqlqueue.core.flow import MOST_AT_ONCE
from sqlqueue.core.keys import KEY_LENGTH
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError
from sqlqueue.log import groups, layouts
from sqlqueue.log.flow import override
from sqlqueue.log.seek import offset_before
from sqlqueue.models import ConsumerGroup
from sqlqueue.operations.move import move
from sqlqueue.operations.reschedule_requests import (
    ERROR_LENGTH,
    FAILING,
    MOST_COUNTED,
    POSTPONED,
    WaitingDeliveries,
    request_rescheduling,
)
from sqlqueue.operations.topics import pause, resume
from sqlqueue.stats.rewind_preview import count_above
from sqlqueue.stats.survey import survey

WAITING = {FAILING: gettext_lazy("failing"), POSTPONED: gettext_lazy("postponed")}


class PauseGroup(Pause):
    """Let no consumer read for groups until they are resumed."""

    permissions = ("pause_consumergroup",)

    def switch(self, row: ConsumerGroup) -> bool:
        """Pause or resume a group."""
        return (pause if self.paused else resume)(self.log, row.topic, row.consumer_group)


class ResumeGroup(Resume, PauseGroup):
    """Let consumers read for groups again."""


def limits(group: ConsumerGroup) -> Options:
    """Return a group's active hours and limits, as its consumers declare them and as they are overridden."""
    no_limit = gettext_lazy("messages in a second, minute, hour or day, such as “100/m”; empty: no limit")
    fields: dict[str, forms.Field] = {
        "active": forms.CharField(
            label=_("Active hours"),
            help_text=_("such as “mon-fri 22:00-06:00 Europe/Berlin”; empty: at all times"),
            max_length=HOURS_LENGTH,
            required=False,
        ),
        "rate_limit": forms.CharField(label=_("Rate limit"), help_text=no_limit, required=False),
        "rate_limit_per_key": forms.CharField(
            label=_("Rate limit of each key"),
            help_text=_(
                "messages of one key in a second, minute, hour or day, such as “1/s”; empty: no limit. It holds for "
                "groups that keep the order of each key and take no batches"
            ),
            required=False,
        ),
        "concurrency_limit": forms.IntegerField(
            label=_("Concurrency limit"),
            help_text=_("handlers that run at once, of all processes together; empty: no limit"),
            min_value=1,
            max_value=MOST_AT_ONCE,
            required=False,
        ),
        "concurrency_limit_per_key": forms.IntegerField(
            label=_("Concurrency limit of each key"),
            help_text=_(
                "messages of one key that are in flight at once; empty: no limit. It holds for groups that keep no "
                "order, take no batches and share no partition"
            ),
            min_value=1,
            max_value=MOST_AT_ONCE,
            required=False,
        ),
        "retry_budget": forms.CharField(
            label=_("Retry budget"),
            help_text=_("failures in a second, minute, hour or day, such as “20/m”; empty: no limit"),
            required=False,
        ),
    }
    declared, overrides = (json.loads(text) if text else {} for text in (group.flow, group.flow_overrides))
    return Options(fields, declared, overrides, _("Its consumers say"), _limit)


def _limit(value: Any) -> str:
    return _("no limit") if value is None else str(value)


class SetLimits(Operation):
    """Override a group's active hours and limits."""

    name, label = "limits", gettext_lazy("Hours and limits")
    explanation = gettext_lazy(
        "A group works as its consumers' options say. An override made here holds instead until it is removed; running "
        "consumers follow within moments."
    )
    permissions = ("change_consumergroup",)
    several = False

    def form(self, data: Any = None) -> OverrideForm:
        """Return the form with the present values."""
        return OverrideForm(limits(self.rows[0]), data)

    def run(self, form: Any) -> Done:
        """Replace the group's overrides."""
        [group] = self.rows
        if not override(self.log, group.consumer_group, group.topic, form.overrides):
            return Done(_("Nothing was changed."))
        return Done(form.changes, self.rows)


class MoveForm(forms.Form):
    """The partition (empty: all), and the offset or the time from which on the group reads."""

    partition = forms.IntegerField(
        label=gettext_lazy("Partition"), help_text=gettext_lazy("empty: all"), min_value=0, required=False
    )
    offset = forms.IntegerField(
        label=gettext_lazy("From offset"),
        help_text=gettext_lazy("the first one to be delivered; 0: everything that the log still holds"),
        min_value=0,
        max_value=2**63 - 1,
        required=False,
    )
    time = MomentField(
        label=gettext_lazy("or from time"),
        help_text=gettext_lazy("of publishing, in this site's time zone"),
        required=False,
    )

    def clean(self) -> dict[str, Any]:
        """Refuse both an offset and a time, or neither."""
        given = [name for name in ("offset", "time") if self.cleaned_data.get(name) is not None]
        if len(given) != 1 and not self.errors:
            raise forms.ValidationError(_("Give either an offset or a time."))
        return self.cleaned_data


class Move(Operation):
    """Rewind a group, or let it skip."""

    name, label = "move", gettext_lazy("Rewind or skip")
    explanation = gettext_lazy(
        "Moves the group to another offset. A rewind delivers messages again; a skip leaves out those in between. A "
        "process that has some of them in flight loses the partition first."
    )
    permissions = ("replay_consumergroup",)
    form_class = MoveForm
    several, counts = False, True

    def _target(self, form: Any) -> tuple[int, int | None]:
        """Return the offset above which everything is delivered, and the partition. Raises ConfigurationError for a
        partition that the topic does not have."""
        given, partition = form.cleaned_data, form.cleaned_data["partition"]
        numbers = layouts.numbers(self.log, self.rows[0].topic)
        if partition is not None and partition not in numbers:
            text = _("The topic's partitions are %(least)d to %(most)d.")
            raise ConfigurationError(text % {"least": numbers[0], "most": numbers[-1]})
        target = offset_before(self.log, given["time"]) if given["time"] else max(0, given["offset"] - 1)
        return target, partition

    def preview(self, form: Any) -> list[str]:
        """Count what is delivered again, and what is skipped."""
        [group] = self.rows
        target, partition = self._target(form)
        counted = count_above(self.log, group.topic, target, partition, group.consumer_group)
        values = {"first": target + 1, "partition": partition}
        self.pinned = {"offset": target + 1, "partition": "" if partition is None else partition}
        self.button = _("Move the group to offset %(first)s") % values
        if partition is not None:
            self.button = _("Move partition %(partition)s to offset %(first)s") % values
        texts = [
            ngettext(
                "%(count)s message would be delivered again.",
                "%(count)s messages would be delivered again.",
                counted.again,
            )
            % {"count": counted.again},
            ngettext("%(count)s message would be skipped.", "%(count)s messages would be skipped.", counted.skipped)
            % {"count": counted.skipped},
            ngettext(
                "%(count)s message in all would be ahead of the group.",
                "%(count)s messages in all would be ahead of the group.",
                counted.above,
            )
            % {"count": counted.above},
        ]
        return [f"≈ {text}" for text in texts] if counted.estimated else texts

    def run(self, form: Any) -> Done:
        """Move it."""
        [group] = self.rows
        target, partition = self._target(form)
        used = move(self.log, group.consumer_group, group.topic, target, partition, timeout=LOCK_TIMEOUT)
        text = _("Moved to offset %(offset)d in all partitions.")
        if partition is not None:
            text = _("Moved to offset %(offset)d in partition %(partition)d.")
        return Done(text % {"offset": used, "partition": partition}, self.rows)


class RescheduleManyForm(forms.Form):
    """Which deliveries, when they become due, and at which rate."""

    which = forms.ChoiceField(
        label=gettext_lazy("Which"),
        choices=[("", gettext_lazy("all that wait for their time")), *WAITING.items()],
        required=False,
    )
    error = forms.CharField(
        label=gettext_lazy("Error"),
        help_text=gettext_lazy(
            "Only deliveries whose last error contains this text, in upper or lower case; empty: any."
        ),
        max_length=ERROR_LENGTH,
        required=False,
    )
    key = forms.CharField(
        label=gettext_lazy("Key"),
        help_text=gettext_lazy("Only messages of exactly this key; empty: of any."),
        max_length=KEY_LENGTH,
        strip=False,
        required=False,
    )
    since = MomentField(label=gettext_lazy("Published since"), required=False)
    until = MomentField(
        label=gettext_lazy("Published before"),
        help_text=gettext_lazy("in this site's time zone, to within some seconds"),
        required=False,
    )
    delay = forms.FloatField(
        label=gettext_lazy("Delay"),
        help_text=gettext_lazy("Seconds from when the rescheduling reaches a delivery; 0: at once."),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
    )
    attempts = forms.IntegerField(
        label=gettext_lazy("Attempts so far"),
        help_text=gettext_lazy("0: a fresh start; empty: as it is."),
        required=False,
        min_value=0,
        max_value=MOST_ATTEMPTS,
    )
    rate = forms.FloatField(
        label=gettext_lazy("Rate"),
        help_text=gettext_lazy("At most so many deliveries a second; empty: as fast as it goes."),
        required=False,
        min_value=LEAST_RATE,
        max_value=MOST_RATE,
    )


class RescheduleMany(Operation):
    """Request that waiting deliveries of a group become due."""

    name, label = "reschedule", gettext_lazy("Reschedule many")
    explanation = gettext_lazy(
        "Deliveries of a group that wait for their time, because they failed or were postponed, become due. The "
        "consumer processes carry this out, partition by partition and oldest first. Messages that are in flight, due "
        "or settled, and messages that are published from now on, are left alone."
    )
    permissions = ("view_request", "reschedule_deliverystate")
    form_class = RescheduleManyForm
    flag = ADDITION
    several, counts = False, True

    def _waiting(self, given: dict[str, Any]) -> WaitingDeliveries:
        [group] = self.rows
        return WaitingDeliveries(
            group.topic,
            group.consumer_group,
            given["which"],
            given["error"],
            offset_before(self.log, given["since"]) if given["since"] else 0,
            offset_before(self.log, given["until"]) if given["until"] else None,
            given["key"],
        )

    def preview(self, form: Any) -> list[str]:
        """Count the deliveries."""
        waiting = self._waiting(form.cleaned_data)
        waiting.check(self.log)
        count = waiting.count(self.log)
        self.button = _("Reschedule them") if count else ""
        if count == MOST_COUNTED:
            return [_("%(count)s deliveries or more would be rescheduled.") % {"count": count}]
        text = ngettext("%(count)s delivery would be rescheduled.", "%(count)s deliveries would be rescheduled.", count)
        return [text % {"count": count}]

    def run(self, form: Any) -> Done:
        """Request it from the consumer processes."""
        given = form.cleaned_data
        made = request_rescheduling(
            self.log,
            self._waiting(given),
            delay=given["delay"],
            attempts=given["attempts"],
            rate=given["rate"],
            requested_by=user_name(self.request)[:150],
        )
        text = _("Requested to reschedule %(count)d deliveries of %(group)s of %(topic)s.") % {
            "count": made.total,
            "group": made.consumer_group,
            "topic": made.topic,
        }
        return Done(text, [made], page_url(self.request, "request", "change", made.pk))


class Remove(Operation):
    """Remove a group."""

    name, label = "remove", gettext_lazy("Remove")
    permissions = ("delete_consumergroup",)
    flag = DELETION
    dangerous, several = True, False

    def preview(self, form: Any) -> list[str]:
        """Count what the group has not settled, and its subscribers."""
        [group] = self.rows
        stats = survey(self.log, group.topic, group.consumer_group).group(group.topic, group.consumer_group)
        lag, alive = (stats.lag, stats.subscribers) if stats else (0, 0)
        lost = ngettext(
            "%(count)s message that it has not settled is never delivered to it.",
            "%(count)s messages that it has not settled are never delivered to it.",
            lag,
        ) % {"count": lag}
        serving = ngettext(
            "%(count)s subscriber serves it now. Stop it first.",
            "%(count)s subscribers serve it now. Stop them first.",
            alive,
        ) % {"count": alive}
        return [
            *([serving] if alive else []),
            f"≈ {lost}" if stats and stats.estimated else lost,
            _("Collection no longer waits for it, and may delete messages that only this group had not read."),
            _("Its offsets and delivery states are deleted for good. Its dead letters and receipts stay."),
            _(
                "If a consumer for it is started afterwards, it begins as a new group: with start “earliest”, it gets "
                "again everything that the log still holds."
            ),
        ]

    def run(self, form: Any) -> Done:
        """Remove it."""
        [group] = self.rows
        groups.remove(self.log, group.consumer_group, group.topic)
        return Done(_("%(group)s is removed.") % {"group": group}, self.rows, self.model_admin.url("changelist"))


GROUP_OPERATIONS = (PauseGroup, ResumeGroup, SetLimits, Move, RescheduleMany, Remove)
