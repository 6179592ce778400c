"""The action that deletes messages from the log, after it has counted which groups have not settled them."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.models import DELETION
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.actions.message_actions import MessageAction
from sqlqueue.database.log import current_log
from sqlqueue.models import Topic
from sqlqueue.operations.delete import Deleted, check_deletable, delete, unsettled


class DeleteForm(forms.Form):
    """The reason, and whether messages that a group has not settled are deleted too."""

    reason = forms.CharField(
        label=gettext_lazy("Reason"), help_text=gettext_lazy("It is kept in the admin's log."), max_length=300
    )
    also_unsettled = forms.BooleanField(
        label=gettext_lazy("Also messages that groups have not settled"), required=False
    )


class Delete(MessageAction):
    """Delete messages from the log."""

    name = "delete"
    label = gettext_lazy("Delete from the log")
    explanation = gettext_lazy(
        "The messages are deleted for good, whatever their topic's retention. Their dead letters and receipts stay, "
        "and so do messages that are in flight. If a group has not read a message yet, its partition changes its "
        "owner, and what is in flight there is delivered again."
    )
    permissions = ("delete_message",)
    form_class = DeleteForm
    dangerous = True

    def form(self, data: Any = None) -> forms.Form:
        """Return the form; it says which groups have not settled some of the messages."""
        form = self.form_class(data)
        counts: dict[str, list[int]] = {}
        for topic, offsets in self.topics.items():
            for group, found in unsettled(current_log(), topic, offsets).items():
                count = counts.setdefault(group, [0, 0])
                count[0] += len(found.waiting)
                count[1] += len(found.in_flight)
        texts = [
            _("%(group)s: %(waiting)d not settled, %(in_flight)d in flight")
            % {"group": group, "waiting": waiting, "in_flight": in_flight}
            for group, (waiting, in_flight) in sorted(counts.items())
        ]
        all_settled = _("Every group has settled all of them.")
        form.fields["also_unsettled"].help_text = "; ".join(texts) + "." if texts else all_settled
        return form

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Delete topic by topic; each topic gets a log entry of its own."""
        log, also_unsettled = current_log(), wanted["also_unsettled"]
        total = Deleted(0, 0, 0)
        for topic in self.topics:
            check_deletable(log, topic)
        for topic, offsets in self.topics.items():
            done = delete(log, topic, offsets, also_unsettled=also_unsettled)
            total = Deleted(*(sum(pair) for pair in zip(total, done)))
            sentence = _("Deleted %(deleted)d of the messages at %(offsets)s. Reason: %(reason)s") % {
                "deleted": done.deleted,
                "offsets": ", ".join(map(str, offsets)),
                "reason": wanted["reason"],
            }
            log_action(request, Topic.objects.using(log.alias).filter(name=topic), DELETION, sentence)
        return _(
            "Deleted: %(deleted)d. Left alone, because a group has not settled them: %(unsettled)d; because they are "
            "in flight: %(in_flight)d."
        ) % {"deleted": total.deleted, "unsettled": total.unsettled, "in_flight": total.in_flight}
