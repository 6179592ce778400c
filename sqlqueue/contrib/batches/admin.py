"""Batches: the list with their progress, and the page of one, with buttons that cancel it and retry what has failed."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.http import require_POST

from sqlqueue.admin.cells import tag
from sqlqueue.admin.lists import KeysetAdmin, KeysetChangeList
from sqlqueue.admin.operation import log_done
from sqlqueue.admin.pages import may, require, show
from sqlqueue.contrib.batches.models import Batch
from sqlqueue.contrib.batches.retry import retry_failed
from sqlqueue.contrib.batches.status import cancel_batch, statuses
from sqlqueue.database.log import current_log

STATES = {
    "open": gettext_lazy("open"),
    "running": gettext_lazy("running"),
    "finished": gettext_lazy("finished"),
    "succeeded": gettext_lazy("succeeded"),
    "cancelled": gettext_lazy("cancelled"),
}


@admin.register(Batch)
class BatchAdmin(KeysetAdmin):
    """The list of batches: those that may still end otherwise, then the others; newest first."""

    list_display = ("__str__", "state", "progress", "failed", "created_at", "ended_at")
    search_fields = ("=id",)
    key = ("-created_at", "-id")

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

    def get_urls(self) -> list[URLPattern]:
        """Add the URLs of the buttons."""
        buttons = {"cancel": self.cancel_view, "retry": self.retry_view}
        own = [
            path(
                f"<str:object_id>/{name}/",
                self.admin_site.admin_view(require_POST(view)),
                name=f"sqlqueue_batches_batch_{name}",
            )
            for name, view in buttons.items()
        ]
        return own + super().get_urls()

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show a batch and its progress."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        batch = self._row(request, object_id)
        status = statuses(current_log(), [batch.pk]).get(batch.pk)
        if status is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        callbacks = batch.callbacks if isinstance(batch.callbacks, dict) else {}
        may_retry = status.failed or (status.failed_at and not status.succeeded_at)  # of those inside it, perhaps
        context = {
            "batch": batch,
            "status": status,
            "state": STATES[status.state],
            "settled": status.done + status.failed,
            "called": [(f"on_{when}", one) for when, one in sorted(callbacks.items()) if when != "then"],
            "steps": len(callbacks.get("then", ())),
            "cancel_url": self._url("cancel", batch)
            if may(request, "sqlqueue_batches.cancel_batch") and not batch.over
            else "",
            "retry_url": self._url("retry", batch) if may(request, "replay_message") and may_retry else "",
        }
        return show(self, request, "batch", str(batch), {**context, **(extra_context or {})}, app="sqlqueue_batches")

    def cancel_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Cancel a batch."""
        require(request, "sqlqueue_batches.view_batch", "sqlqueue_batches.cancel_batch")
        batch = self._row(request, object_id)
        if cancel_batch(batch.pk):
            sentence = _("Cancelled. No callback is published; the messages are delivered all the same.")
            log_done(request, [batch], CHANGE, sentence)
            messages.success(request, sentence)
        else:
            messages.warning(request, _("There was nothing left to cancel."))
        return HttpResponseRedirect(self._url("change", batch))

    def retry_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Replay the dead letters of a batch."""
        require(request, "sqlqueue_batches.view_batch", "replay_message")
        batch = self._row(request, object_id)
        done = retry_failed(batch.pk)
        sentence = ngettext(
            "%(count)d dead letter is delivered again.", "%(count)d dead letters are delivered again.", done
        ) % {"count": done}
        if done:
            log_done(request, [batch], CHANGE, sentence)
        messages.success(request, sentence)
        return HttpResponseRedirect(self._url("change", batch))

    def _row(self, request: HttpRequest, object_id: str) -> Any:
        found = self.get_object(request, unquote(object_id))
        if found is None:
            raise Http404(_("This row does not exist: it may have been removed."))
        return found

    def _url(self, name: str, batch: Batch) -> str:
        return reverse(f"{self.admin_site.name}:sqlqueue_batches_batch_{name}", args=[batch.pk])
