"""The page that purges a topic: it counts first, and then purges up to an offset, unsettled messages too if asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.models import DELETION
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import cached_property
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.pages import LOCK_TIMEOUT, may, require, show
from sqlqueue.admin.pausing import PausableAdmin
from sqlqueue.admin.times import MomentField
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.database.log import current_log
from sqlqueue.database.transactions import outside_transactions
from sqlqueue.exceptions import ConfigurationError, HorizonUnknown
from sqlqueue.log.seek import offset_before
from sqlqueue.models import Topic
from sqlqueue.operations.purge import PurgePreview, delete_purged, preview, purge

DELETED_AT_ONCE = 10  # batches of 1,000 messages: the rest is deleted by the consumer processes
METHODS = ["GET", "HEAD", "POST"]


class PurgeForm(forms.Form):
    """Up to which time or offset, and whether messages that a group has not settled are purged too."""

    time = MomentField(
        label=gettext_lazy("Published before"),
        help_text=gettext_lazy("in this site's time zone, to within some seconds"),
        required=False,
    )
    through = forms.IntegerField(
        label=gettext_lazy("or up to offset"),
        help_text=gettext_lazy("both empty: all present messages"),
        min_value=0,
        max_value=2**63 - 1,
        required=False,
    )
    unsettled = forms.BooleanField(label=gettext_lazy("Also messages that groups have not settled"), required=False)

    def clean(self) -> dict[str, Any]:
        """Refuse both a time and an offset."""
        if self.cleaned_data.get("time") is not None and self.cleaned_data.get("through") is not None:
            raise forms.ValidationError(_("Give either an offset or a time."))
        return self.cleaned_data

    @cached_property
    def offset(self) -> int | None:
        """Up to which offset; None: all present messages."""
        if self.cleaned_data["time"] is not None:
            return offset_before(current_log(), self.cleaned_data["time"])
        given: int | None = self.cleaned_data["through"]
        return given


class PurgeableAdmin(PausableAdmin):
    """A list of topics that users with the permission `purge_topic` can purge."""

    def get_urls(self) -> list[URLPattern]:
        """Add the page. It runs outside of ATOMIC_REQUESTS: the horizon cannot be known in a transaction."""
        view = outside_transactions(require_http_methods(METHODS)(self.purge_view))
        return [self.row_path("purge", view), *super().get_urls()]

    def purge_url(self, request: HttpRequest, topic: Topic) -> str:
        """Return the page's URL; "" if the user may not purge, and for dead-letter topics, which are not purged."""
        permitted = may(request, "purge_topic") and not topic.name.endswith(DEAD_LETTER_SUFFIX)
        return self.row_url("purge", topic) if permitted else ""

    def purge_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Count what a purge would delete (GET), and purge (POST)."""
        require(request, "view_topic", "purge_topic")
        request.current_app = self.admin_site.name
        topic = self.get_row(request, object_id)
        data: Mapping[str, Any] = request.POST if request.method == "POST" else request.GET
        form = PurgeForm(data if data else None)
        counted: PurgePreview | None = None
        if form.is_bound and form.is_valid():
            try:
                if request.method == "POST":
                    return self._purge(request, topic, form)
                counted = preview(current_log(), topic.name, form.offset)
            except (ConfigurationError, HorizonUnknown) as error:
                form.add_error(None, str(error))
        context = {
            "row": topic,
            "form": form,
            "counted": counted,
            "unsettled": sum(counted.unsettled.values()) if counted else 0,
            "also_unsettled": bool(counted and form.cleaned_data["unsettled"]),
        }
        return show(self, request, "purge", _("Purge %(topic)s") % {"topic": topic}, context)

    def _purge(self, request: HttpRequest, topic: Topic, form: PurgeForm) -> HttpResponse:
        log = current_log()
        unsettled = form.cleaned_data["unsettled"]
        done = purge(log, topic.name, through=form.offset, unsettled=unsettled, timeout=LOCK_TIMEOUT)
        deleted, more = delete_purged(log, topic.name, DELETED_AT_ONCE)
        sentence = _("Purged up to offset %(offset)d; deleted at once: %(deleted)d.") % {
            "offset": done.through,
            "deleted": deleted,
        }
        if done.skipped:
            sentence += " " + _("Groups that skip messages they had not settled: %s.") % ", ".join(done.skipped)
        if more:
            sentence += " " + _("The consumer processes delete the rest.")
        log_action(request, [topic], DELETION, sentence)
        messages.success(request, sentence)
        return HttpResponseRedirect(self.row_url("change", topic))
