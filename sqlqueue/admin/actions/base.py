"""What all actions have in common: the page that asks for confirmation, the call of the operation, the log entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import LogEntry
from django.core.exceptions import BadRequest
from django.db import models
from django.forms import Form
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.utils.functional import Promise
from django.utils.translation import gettext as _

from sqlqueue.admin.pages import NUMBER, ModelAdmin, may, remember_change, require, show
from sqlqueue.exceptions import SqlqueueError

CONFIRMED = "confirmed"
MOST_CHOSEN = 1_000  # rows of one action
MOST_LISTED = 20  # rows on the page that asks for confirmation


class Action:
    """An action on chosen rows. Each request makes a new instance."""

    name: ClassVar[str]
    label: ClassVar[str | Promise]
    explanation: ClassVar[str | Promise]  # what it does to the rows
    permissions: ClassVar[tuple[str, ...]]
    view_permission: ClassVar[str] = "view_message"  # to see the rows
    dangerous: ClassVar[bool] = False
    do_not_call_in_templates: ClassVar[bool] = True  # templates list the classes

    count: int  # of the chosen rows
    more: bool = False  # there are more rows than were counted
    listed: Sequence[Any] = ()  # the first MOST_LISTED of them
    success_url: str  # where the browser goes afterwards

    def form(self, data: Any = None) -> Form:
        """Return the form that asks for the action's parameters."""
        return Form(data)

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return names and values of the hidden fields that choose the same rows again."""
        return ()

    def carry_out(self, request: HttpRequest, wanted: dict[str, Any]) -> str:
        """Call the operation with the form's values, log it, and return a sentence that says what was done."""
        raise NotImplementedError


class OffersActions(ModelAdmin):
    """A list that offers actions on its ticked rows."""

    action_classes: ClassVar[Mapping[str, type[Any]]]

    def action_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation of an action on the ticked rows, or carry it out."""
        raise NotImplementedError

    def permitted_actions(self, request: HttpRequest) -> list[type[Any]]:
        """Return the actions that the user may run."""
        return [one for one in self.action_classes.values() if all(may(request, name) for name in one.permissions)]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Add the permitted actions. action_location: which of its pages asks; Django passes it from 6.1 on."""
        options = {} if action_location is None else {"action_location": action_location}
        found = super().get_actions(request, **options)
        for action_class in self.permitted_actions(request):
            django_action = self.get_action(self._django_action(action_class), **options)
            if django_action is not None:  # None: the action is not offered at this location
                found[action_class.name] = django_action
        return found

    def _django_action(self, action_class: type[Action]) -> Callable[..., HttpResponse]:
        @admin.action(description=action_class.label)  # type: ignore[arg-type]
        def ask(_admin: object, request: HttpRequest, _chosen: object) -> HttpResponse:
            return self.action_view(request, action_class.name)

        ask.__name__ = action_class.name
        return ask


def run_action(model_admin: ModelAdmin, request: HttpRequest, action: Action, url: str) -> HttpResponse:
    """Show the page that asks for confirmation, or carry the action out if the request confirms it. url: where the form
    is sent, this view. Raises PermissionDenied for users without the action's permissions."""
    if request.method != "POST":
        return HttpResponseNotAllowed(["POST"])
    require(request, action.view_permission, *action.permissions)
    if not action.count:
        messages.warning(request, _("None of the chosen rows exists any more. Nothing was done."))
        return HttpResponseRedirect(action.success_url)
    confirmed = CONFIRMED in request.POST
    form = action.form(request.POST if confirmed else None)
    if confirmed and form.is_valid():
        try:
            sentence = action.carry_out(request, form.cleaned_data)
        except SqlqueueError as error:
            form.add_error(None, str(error))
        else:
            messages.success(request, sentence)
            return HttpResponseRedirect(action.success_url)
    context = {"action": action, "url": url, "form": form, "unlisted": action.count - len(action.listed)}
    return show(model_admin, request, "action", action.label, context)


def chosen_offsets(request: HttpRequest) -> list[int]:
    """Return the ticked offsets; values that are not numbers are left out. Raises BadRequest for more than
    MOST_CHOSEN."""
    ticked = request.POST.getlist(ACTION_CHECKBOX_NAME)
    offsets = {int(value) for value in ticked if NUMBER.fullmatch(value)}
    if len(offsets) > MOST_CHOSEN:
        raise BadRequest(f"{len(offsets)} rows were chosen; an action takes {MOST_CHOSEN} at most")
    return sorted(offsets)


def log_action(request: HttpRequest, objects: Iterable[models.Model], flag: int, sentence: str) -> None:
    """Write an entry to Django's log for each object: what the user has done to it, which lists show from now on."""
    remember_change(request)
    logged: Any = list(objects)
    LogEntry.objects.log_actions(request.user.pk, logged, flag, sentence)
