"""Operator requests: replays and reschedulings, with their progress, and the operation that cancels one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import harmless
from sqlqueue.admin.group_operations import WAITING
from sqlqueue.admin.operation import Done, OperatedAdmin, Operation
from sqlqueue.models import Request
from sqlqueue.models.request import REPLAY, RESCHEDULE
from sqlqueue.operations.requests import cancel

PERMISSION_OF = {REPLAY: "replay_message", RESCHEDULE: "reschedule_deliverystate"}


class CancelRequest(Operation):
    """Cancel the rest of a request."""

    name, label = "cancel", _("Cancel the rest")
    dangerous = True
    asks = several = False

    @property
    def permissions(self) -> Sequence[str]:  # type: ignore[override]
        """The permission that the request itself needs."""
        return [PERMISSION_OF[row.kind] for row in self.rows]

    def fits(self) -> bool:
        """Tell whether it is not done yet."""
        return bool(self.rows[0].active)

    def run(self) -> Done:
        """Cancel it."""
        if not cancel(self.log, self.rows[0].pk):
            return Done(_("There was nothing left to cancel."))
        return Done(_("Cancelled. What was done stays done."), self.rows)


@admin.register(Request)
class RequestAdmin(OperatedAdmin):
    """The list of operator requests, newest first, and a page of each."""

    list_display = ("id", "kind", "topic", "consumer_group", "which", "state", "progress", "ordered_by", "created_at")
    list_filter = ("kind", "state")
    operations = (CancelRequest,)
    page_template = "request"

    @admin.display(description=_("which"))
    def which(self, one: Request) -> str:
        """Show which messages are meant: their failure, or which deliveries wait, with which error and key."""
        given = one.options
        parts = (given.get("fingerprint"), WAITING.get(given.get("which", "")), given.get("error"), given.get("key"))
        return format_html("{}", harmless(", ".join(str(part) for part in parts if part)))

    @admin.display(description=_("progress"))
    def progress(self, one: Request) -> str:
        """Show how many messages of how many are done."""
        return _("%(done)d of %(total)d") % {"done": one.done, "total": one.total}

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and what a replay or a rescheduling is about."""
        title = _("Replay of dead letters of %s") % row.topic
        if row.kind != REPLAY:
            title = _("Rescheduling of deliveries of %s") % row.consumer_group
        return title, {"replays": row.kind == REPLAY, "which": WAITING.get(row.options.get("which", ""))}
