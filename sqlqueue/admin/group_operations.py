"""What may be done with a group: pause it, override its hours and limits, move it, reschedule many deliveries, remove
it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from django import forms
from django.contrib.admin.models import ADDITION, DELETION
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from sqlqueue.admin.cells import MomentField
from sqlqueue.admin.operation import LOCK_TIMEOUT, Done, Operation, Pause, Resume, Text
from sqlqueue.admin.overriding import Override
from sqlqueue.admin.pages import page_url, user_name
from sqlqueue.core.bounds import LEAST_RATE, MOST_ATTEMPTS, MOST_RATE
from sqlqueue.core.flow import HOURS_LENGTH, MOST_AT_ONCE
from sqlqueue.core.keys import KEY_LENGTH
from sqlqueue.exceptions import LONGEST_DELAY, ConfigurationError
from sqlqueue.log import groups, layouts
from sqlqueue.log.groups import override_flow
from sqlqueue.log.status import offset_before
from sqlqueue.operations.move import move, preview
from sqlqueue.operations.reschedule_requests import (
    ERROR_LENGTH,
    FAILING,
    MOST_COUNTED,
    POSTPONED,
    WaitingDeliveries,
    request_rescheduling,
)
from sqlqueue.stats.survey import survey

WAITING = {FAILING: _("failing"), POSTPONED: _("postponed")}


class SetLimits(Override):
    """Override a group's active hours and limits."""

    name, label = "limits", _("Hours and limits")
    explanation = _(
        "A group works as its consumers' options say. An override made here holds instead until it is removed; running "
        "consumers follow within moments."
    )
    permissions = ("change_consumergroup",)
    who = _("Its consumers say")

    def read(self) -> tuple[Mapping[str, forms.Field], Mapping[str, Any], Mapping[str, Any]]:
        """Return the active hours and limits, as the group's consumers declare them and as they are overridden."""
        no_limit = _("messages in a second, minute, hour or day, such as “100/m”; empty: no limit")
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
                    "messages of one key in a second, minute, hour or day, such as “1/s”; empty: no limit. It holds "
                    "for groups that keep the order of each key and take no batches"
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
        [group] = self.rows
        declared, overrides = (json.loads(text) if text else {} for text in (group.flow, group.flow_overrides))
        return fields, declared, overrides

    def as_text(self, value: Any) -> str:
        """Return a limit as a text."""
        return str(_("no limit")) if value is None else str(value)

    def notes(self) -> list[str]:
        """Return a sentence for each option that is overridden, and for each other one that is declared."""
        text = _("%(option)s: %(value)s.")
        return super().notes() + [
            text % {"option": field.label, "value": self.as_text(self.declared[name])}
            for name, field in self.options.items()
            if name in self.declared and name not in self.before
        ]

    def run(self) -> Done:
        """Replace the group's overrides."""
        [group] = self.rows
        if not override_flow(self.log, group.consumer_group, group.topic, self.overrides):
            return Done(_("Nothing was changed."))
        return Done(self.changes, self.rows)


class Move(Operation):
    """Rewind a group, or let it skip."""

    name, label = "move", _("Rewind or skip")
    explanation = _(
        "Moves the group to another offset. A rewind delivers messages again; a skip leaves out those in between. A "
        "process that has some of them in flight loses the partition first."
    )
    permissions = ("replay_consumergroup",)
    several, counts = False, True

    partition = forms.IntegerField(label=_("Partition"), help_text=_("empty: all"), min_value=0, required=False)
    offset = forms.IntegerField(
        label=_("From offset"),
        help_text=_("the first one to be delivered; 0: everything that the log still holds"),
        min_value=0,
        max_value=2**63 - 1,
        required=False,
    )
    time = MomentField(
        label=_("or from time"),
        help_text=_("of publishing, in this site's time zone"),
        required=False,
    )

    def clean(self) -> dict[str, Any]:
        """Refuse both an offset and a time, or neither."""
        given = [name for name in ("offset", "time") if self.cleaned_data.get(name) is not None]
        if len(given) != 1 and not self.errors:
            raise forms.ValidationError(_("Give either an offset or a time."))
        return self.cleaned_data

    def _target(self) -> tuple[int, int | None]:
        """Return the offset above which everything is delivered, and the partition. Raises ConfigurationError for a
        partition that the topic does not have."""
        given, partition = self.cleaned_data, self.cleaned_data["partition"]
        numbers = layouts.numbers(self.log, self.rows[0].topic)
        if partition is not None and partition not in numbers:
            text = _("The topic's partitions are %(least)d to %(most)d.")
            raise ConfigurationError(text % {"least": numbers[0], "most": numbers[-1]})
        target = offset_before(self.log, given["time"]) if given["time"] else max(0, given["offset"] - 1)
        return target, partition

    def preview(self) -> Sequence[Text]:
        """Count what is delivered again, and what is skipped."""
        [group] = self.rows
        target, partition = self._target()
        counted = preview(self.log, group.consumer_group, group.topic, target, partition)
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

    def run(self) -> Done:
        """Move it."""
        [group] = self.rows
        target, partition = self._target()
        used = move(self.log, group.consumer_group, group.topic, target, partition, timeout=LOCK_TIMEOUT)
        text = _("Moved to offset %(offset)d in all partitions.")
        if partition is not None:
            text = _("Moved to offset %(offset)d in partition %(partition)d.")
        return Done(text % {"offset": used, "partition": partition}, self.rows)


class RescheduleMany(Operation):
    """Request that waiting deliveries of a group become due."""

    name, label = "reschedule", _("Reschedule many")
    explanation = _(
        "Deliveries of a group that wait for their time, because they failed or were postponed, become due. The "
        "consumer processes carry this out, partition by partition and oldest first. Messages that are in flight, due "
        "or settled, and messages that are published from now on, are left alone."
    )
    permissions = ("view_request", "reschedule_deliverystate")
    flag = ADDITION
    several, counts = False, True

    which = forms.ChoiceField(
        label=_("Which"),
        choices=[("", _("all that wait for their time")), *WAITING.items()],
        required=False,
    )
    error = forms.CharField(
        label=_("Error"),
        help_text=_("Only deliveries whose last error contains this text, in upper or lower case; empty: any."),
        max_length=ERROR_LENGTH,
        required=False,
    )
    key = forms.CharField(
        label=_("Key"),
        help_text=_("Only messages of exactly this key; empty: of any."),
        max_length=KEY_LENGTH,
        strip=False,
        required=False,
    )
    since = MomentField(label=_("Published since"), required=False)
    until = MomentField(
        label=_("Published before"),
        help_text=_("in this site's time zone, to within some seconds"),
        required=False,
    )
    delay = forms.FloatField(
        label=_("Delay"),
        help_text=_("Seconds from when the rescheduling reaches a delivery; 0: at once."),
        initial=0,
        min_value=0,
        max_value=LONGEST_DELAY,
    )
    attempts = forms.IntegerField(
        label=_("Attempts so far"),
        help_text=_("0: a fresh start; empty: as it is."),
        required=False,
        min_value=0,
        max_value=MOST_ATTEMPTS,
    )
    rate = forms.FloatField(
        label=_("Rate"),
        help_text=_("At most so many deliveries a second; empty: as fast as it goes."),
        required=False,
        min_value=LEAST_RATE,
        max_value=MOST_RATE,
    )

    def _waiting(self) -> WaitingDeliveries:
        [group], given = self.rows, self.cleaned_data
        return WaitingDeliveries(
            group.topic,
            group.consumer_group,
            given["which"],
            given["error"],
            offset_before(self.log, given["since"]) if given["since"] else 0,
            offset_before(self.log, given["until"]) if given["until"] else None,
            given["key"],
        )

    def preview(self) -> Sequence[Text]:
        """Count the deliveries."""
        waiting = self._waiting()
        waiting.check(self.log)
        count = waiting.count(self.log)
        self.button = _("Reschedule them") if count else ""
        if count == MOST_COUNTED:
            return [_("%(count)s deliveries or more would be rescheduled.") % {"count": count}]
        text = ngettext("%(count)s delivery would be rescheduled.", "%(count)s deliveries would be rescheduled.", count)
        return [text % {"count": count}]

    def run(self) -> Done:
        """Request it from the consumer processes."""
        given = self.cleaned_data
        made = request_rescheduling(
            self.log,
            self._waiting(),
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

    name, label = "remove", _("Remove")
    permissions = ("delete_consumergroup",)
    flag = DELETION
    dangerous, several = True, False

    def preview(self) -> Sequence[Text]:
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

    def run(self) -> Done:
        """Remove it."""
        [group] = self.rows
        groups.remove(self.log, group.consumer_group, group.topic)
        return Done(_("%(group)s is removed.") % {"group": group}, self.rows, self.model_admin.url("changelist"))


GROUP_OPERATIONS = (Pause, Resume, SetLimits, Move, RescheduleMany, Remove)
