"""Orders: what a person tells the queue to do: asked for in a form, confirmed, carried out by a verb, and noted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.db import models
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import ModelAdmin, require
from sqlqueue.exceptions import SqlqueueError

CONFIRMED = "confirmed"
MOST_CHOSEN = 1_000  # messages of one order
MOST_LISTED = 20


class Order:
    """One thing to be done. A new one for each request."""

    name: ClassVar[str]
    label: ClassVar[str | Promise]
    explanation: ClassVar[str | Promise]  # what it does to a delivery
    permissions: ClassVar[tuple[str, ...]]
    dangerous: ClassVar[bool] = False
    do_not_call_in_templates: ClassVar[bool] = True  # pages list the kinds

    count: int  # of what it is about
    more: bool = False  # there is more than was counted
    listed: Sequence[Any] = ()  # some of it
    done_at: str  # the address to go to afterwards

    def form(self, data: Any = None) -> Form:
        """Return the form that asks for the rest."""
        return Form(data)

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return what the form has to bring back: names and values."""
        return ()

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Do it, note it, and return a sentence that says what was done."""
        raise NotImplementedError


def give(model_admin: ModelAdmin, request: HttpRequest, order: Order, address: str) -> HttpResponse:
    """Ask for an order, or carry it out once it is confirmed; refuse whoever may not give it. address: where the form
    goes, which is here again."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    require(request, "view_message", *order.permissions)
    if not order.count:
        messages.warning(request, _("There is nothing left of what was chosen. Nothing was done."))
        return HttpResponseRedirect(order.done_at)
    confirmed = CONFIRMED in request.POST
    form = order.form(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        try:
            sentence = order.carry_out(request, form.cleaned_data)
        except SqlqueueError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, sentence)
            return HttpResponseRedirect(order.done_at)
    context = {"order": order, "address": address, "form": form, "unlisted": order.count - len(order.listed)}
    return show(model_admin, request, "order", order.label, context)


def chosen_offsets(request: HttpRequest) -> list[int]:
    """Return the offsets that were ticked; what is no offset is left out. Raises BadRequest if they are too many."""
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    offsets = {int(value) for value in ticked if value.isascii() and value.isdigit() and len(value) < 19}
    if len(offsets) > MOST_CHOSEN:
        raise BadRequest(f"{len(offsets)} messages were chosen; one order is about {MOST_CHOSEN} at most")
    return sorted(offsets)


def note(request: HttpRequest, objects: Iterable[models.Model], flag: int, sentence: str) -> None:
    """Put into Django's log what the user has done to these."""
    noted: Any = list(objects)
    LogEntry.objects.log_actions(request.user.pk, noted, flag, sentence)
