"""The form that says where a group is moved to, and the offset that this means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.times import MomentField
from sqlqueue.database.log import current_log
from sqlqueue.log import layouts
from sqlqueue.log.seek import offset_before
from sqlqueue.models import ConsumerGroup


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

    def __init__(self, group: ConsumerGroup, data: Mapping[str, Any] | None = None):
        super().__init__(data)
        self.group = group

    def clean_partition(self) -> int | None:
        """Refuse a partition that the topic does not have."""
        given: int | None = self.cleaned_data["partition"]
        if given is None:
            return None
        numbers = layouts.numbers(current_log(), self.group.topic)
        if given not in numbers:
            least, most = numbers[0], numbers[-1]
            text = _("The topic's partitions are %(least)d to %(most)d.")
            raise forms.ValidationError(text % {"least": least, "most": most})
        return given

    def clean(self) -> dict[str, Any]:
        """Refuse both an offset and a time, or neither."""
        given = [name for name in ("offset", "time") if self.cleaned_data.get(name) is not None]
        if len(given) != 1 and not self.errors:
            raise forms.ValidationError(_("Give either an offset or a time."))
        return self.cleaned_data

    @property
    def chosen_partition(self) -> int | None:
        """The partition; None for all."""
        return self.cleaned_data["partition"]

    @cached_property
    def target(self) -> int:
        """The offset above which everything is delivered."""
        if self.cleaned_data["time"] is not None:
            return offset_before(current_log(), self.cleaned_data["time"])
        return max(0, int(self.cleaned_data["offset"]) - 1)
