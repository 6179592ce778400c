"""Operator requests: replays and reschedulings, with their progress, a button that cancels, and the form that
reschedules many deliveries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.models import ADDITION, CHANGE
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path, reverse
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.http import require_http_methods

from sqlqueue.admin.actions.base import log_action
from sqlqueue.admin.cells import harmless
from sqlqueue.admin.lists import KeysetAdmin
from sqlqueue.admin.pages import NUMBER, may, require, show, user_name
from sqlqueue.admin.times import MomentField
from sqlqueue.core.bounds import LEAST_RATE, MOST_ATTEMPTS, MOST_RATE
from sqlqueue.core.keys import KEY_LENGTH
from sqlqueue.database.log import current_log
from sqlqueue.exceptions import LONGEST_DELAY, SqlqueueError
from sqlqueue.log.seek import offset_before
from sqlqueue.models import ConsumerGroup, Request
from sqlqueue.models.request import REPLAY, RESCHEDULE
from sqlqueue.operations.requests import cancel
from sqlqueue.operations.reschedule_requests import (
    ERROR_LENGTH,
    FAILING,
    MOST_COUNTED,
    POSTPONED,
    WaitingDeliveries,
    request_rescheduling,
)

MOST_GROUPS = 1_000  # in the form's list
METHODS = ["GET", "HEAD", "POST"]
PERMISSION_OF = {REPLAY: "replay_message", RESCHEDULE: "reschedule_deliverystate"}
WAITING = {FAILING: gettext_lazy("failing"), POSTPONED: gettext_lazy("postponed")}


class RescheduleManyForm(forms.Form):
    """Which deliveries, when they become due, and at which rate."""

    of = forms.ChoiceField(label=gettext_lazy("Group"))
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
    since = MomentField(
        label=gettext_lazy("Published since"),
        required=False,
    )
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

    def __init__(self, data: Mapping[str, Any] | None, initial: Mapping[str, Any]) -> None:
        super().__init__(data, initial=dict(initial))
        values = [str(source.get("of", "")) for source in (data or {}, initial)]
        keys = [value for value in values if NUMBER.fullmatch(value)]
        groups = ConsumerGroup.objects.using(current_log().alias).order_by("topic", "consumer_group")
        self.groups = {str(group.pk): group for group in [*groups[:MOST_GROUPS], *groups.filter(pk__in=keys)]}
        of = self.fields["of"]
        assert isinstance(of, forms.ChoiceField)
        of.choices = [(key, str(group)) for key, group in self.groups.items()]

    def waiting(self) -> WaitingDeliveries:
        """Return the chosen deliveries."""
        chosen, log = self.cleaned_data, current_log()
        group = self.groups[chosen["of"]]
        return WaitingDeliveries(
            group.topic,
            group.consumer_group,
            chosen["which"],
            chosen["error"],
            offset_before(log, chosen["since"]) if chosen["since"] else 0,
            offset_before(log, chosen["until"]) if chosen["until"] else None,
            chosen["key"],
        )


@admin.register(Request)
class RequestAdmin(KeysetAdmin):
    """The list of operator requests, newest first, and a page of each."""

    change_list_template = "admin/sqlqueue/requests.html"
    list_display = ("id", "kind", "topic", "consumer_group", "which", "state", "progress", "ordered_by", "created_at")
    list_filter = ("kind", "state")

    @admin.display(description=gettext_lazy("which"))
    def which(self, one: Request) -> str:
        """Show which messages are meant: their failure, or which deliveries wait, with which error and key."""
        given = one.options
        parts = (given.get("fingerprint"), WAITING.get(given.get("which", "")), given.get("error"), given.get("key"))
        return format_html("{}", harmless(", ".join(str(part) for part in parts if part)))

    @admin.display(description=gettext_lazy("progress"))
    def progress(self, one: Request) -> str:
        """Show how many messages of how many are done."""
        return _("%(done)d of %(total)d") % {"done": one.done, "total": one.total}

    def get_urls(self) -> list[URLPattern]:
        """Add the views that request a rescheduling and cancel a request."""
        new_view = self.admin_site.admin_view(require_http_methods(METHODS)(self.new_view))
        cancel_view = self.admin_site.admin_view(self.cancel_view)
        return [
            path("reschedule/", new_view, name="sqlqueue_request_reschedule"),
            path("<int:number>/cancel/", cancel_view, name="sqlqueue_request_cancel"),
            *super().get_urls(),
        ]

    def new_view(self, request: HttpRequest) -> HttpResponse:
        """Count the deliveries that the form chooses (GET), and request their rescheduling (POST)."""
        require(request, "view_request", PERMISSION_OF[RESCHEDULE])
        submitted = "count" in request.GET or request.method == "POST"
        data = request.POST if request.method == "POST" else request.GET
        form = RescheduleManyForm(data if submitted else None, {"of": request.GET.get("of", ""), "delay": 0})
        counted = None
        if submitted and form.is_valid():
            try:
                if request.method == "POST":
                    return self._create(request, form)
                waiting = form.waiting()
                waiting.check(current_log())
                counted = waiting.count(current_log())
            except SqlqueueError as error:
                form.add_error(None, str(error))
        hidden = [(name, value) for name, value in request.GET.items() if name in form.fields]
        context = {"form": form, "counted": counted, "more": counted == MOST_COUNTED, "hidden": hidden}
        return show(self, request, "reschedule_many", _("Reschedule many deliveries"), context)

    def _create(self, request: HttpRequest, form: RescheduleManyForm) -> HttpResponse:
        wanted = form.cleaned_data
        made = request_rescheduling(
            current_log(),
            form.waiting(),
            delay=wanted["delay"],
            attempts=wanted["attempts"],
            rate=wanted["rate"],
            requested_by=user_name(request)[:150],
        )
        sentence = _("Requested to reschedule %(count)d deliveries of %(group)s of %(topic)s.") % {
            "count": made.total,
            "group": made.consumer_group,
            "topic": made.topic,
        }
        log_action(request, [made], ADDITION, sentence)
        messages.success(request, sentence)
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sqlqueue_request_change", args=[made.pk]))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a request and its progress."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        found = self.get_object(request, unquote(object_id))
        if found is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        context = {
            "one": found,
            "replays": found.kind == REPLAY,
            "which": WAITING.get(found.options.get("which", "")),
            "may_cancel": found.active and may(request, PERMISSION_OF[found.kind]),
        }
        title = _("Replay of dead letters of %s") % found.topic
        if found.kind != REPLAY:
            title = _("Rescheduling of deliveries of %s") % found.consumer_group
        return show(self, request, "request", title, context)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, with a link to the form for users who may request a rescheduling."""
        may_reschedule = may(request, "reschedule_deliverystate")
        return super().changelist_view(request, {"may_reschedule": may_reschedule, **(extra_context or {})})

    def cancel_view(self, request: HttpRequest, number: int) -> HttpResponse:
        """Cancel the rest of a request."""
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        require(request, "view_request")
        found = self.get_queryset(request).filter(pk=number).first()
        if found is None:
            raise Http404
        require(request, PERMISSION_OF[found.kind])
        if cancel(current_log(), number):
            sentence = _("Cancelled. What was done stays done.")
            log_action(request, [found], CHANGE, sentence)
            messages.success(request, sentence)
        else:
            messages.warning(request, _("There was nothing left to cancel."))
        return HttpResponseRedirect(reverse(f"{self.admin_site.name}:sqlqueue_request_change", args=[number]))
