"""Batches: the list with their progress, and the page of one, with operations that cancel it and retry what has
failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.contrib import admin
from django.db.models import Q
from django.http import Http404, HttpRequest
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from sqlqueue.admin.cells import tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.operation import Done, OperatedAdmin, Operation
from sqlqueue.contrib.batches.models import Batch
from sqlqueue.contrib.batches.retry import retry_failed
from sqlqueue.contrib.batches.status import cancel_batch, statuses

STATES = {
    "open": gettext_lazy("open"),
    "running": gettext_lazy("running"),
    "finished": gettext_lazy("finished"),
    "succeeded": gettext_lazy("succeeded"),
    "cancelled": gettext_lazy("cancelled"),
}


class Retry(Operation):
    """Replay the dead letters of a batch."""

    name, label = "retry", gettext_lazy("Retry what has failed")
    permissions = ("replay_message",)
    asks = several = False

    def fits(self) -> bool:
        """Tell whether something has failed, in the batch or in those inside it, perhaps."""
        status = self.rows[0].status
        return bool(status.failed or (status.failed_at and not status.succeeded_at))

    def run(self) -> Done:
        """Replay them."""
        count = retry_failed(self.rows[0].pk)
        text = ngettext(
            "%(count)d dead letter is delivered again.", "%(count)d dead letters are delivered again.", count
        )
        return Done(text % {"count": count}, self.rows if count else ())


class Cancel(Operation):
    """Cancel a batch."""

    name, label = "cancel", gettext_lazy("Cancel the batch")
    permissions = ("sqlqueue_batches.cancel_batch",)
    dangerous = True
    asks = several = False

    def fits(self) -> bool:
        """Tell whether it may still end otherwise."""
        return not self.rows[0].over

    def run(self) -> Done:
        """Cancel it."""
        if not cancel_batch(self.rows[0].pk):
            return Done(_("There was nothing left to cancel."))
        return Done(_("Cancelled. No callback is published; the messages are delivered all the same."), self.rows)


@admin.register(Batch)
class BatchAdmin(OperatedAdmin):
    """The list of batches: those that may still end otherwise, then the others; newest first."""

    list_display = ("__str__", "state", "progress", "failed", "created_at", "ended_at")
    search_fields = ("=id",)
    key = ("-created_at", "-id")
    operations = (Retry, Cancel)
    page_template = "batch"

    def sections(self) -> list[Q]:
        """Return the conditions of the sections."""
        return [Q(over=False), Q(over=True)]

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return the rows of a page, each with its status; two statements more."""
        page = super().get_page(request, changes)
        found = statuses(changes.log, [row.pk for row in page])
        for row in page:
            row.status = found.get(row.pk)  # None: it was collected just now
        return page

    @admin.display(description=gettext_lazy("state"))
    def state(self, batch: Any) -> str:
        """Show how far it is, and unusual states in a frame."""
        if batch.status is None:
            return "–"
        text = STATES[batch.status.state]
        return tag(text) if batch.status.failed else str(text)

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, batch: Any) -> str:
        """Show a bar, and how many members are done."""
        if batch.status is None:
            return "–"
        text = _("%(done)d of %(total)d") % {"done": batch.status.done, "total": batch.status.total}
        return format_html(
            '<progress class="sqlqueue-progress" max="{}" value="{}" title="{}"></progress> {}',
            max(1, batch.status.total),
            batch.status.done if batch.status.total else int(batch.status.finished_at is not None),
            text,
            text,
        )

    @admin.display(description=gettext_lazy("failed"))
    def failed(self, batch: Any) -> int:
        """Show how many members are dead letters."""
        return 0 if batch.status is None else batch.status.failed

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title, and the batch with its progress."""
        row.status = status = statuses(self.log, [row.pk]).get(row.pk)
        if status is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        callbacks = row.callbacks if isinstance(row.callbacks, dict) else {}
        return str(row), {
            "batch": row,
            "status": status,
            "state": STATES[status.state],
            "settled": status.done + status.failed,
            "called": [(f"on_{when}", one) for when, one in sorted(callbacks.items()) if when != "then"],
            "steps": len(callbacks.get("then", ())),
        }
