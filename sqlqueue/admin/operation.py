"""Operations that users ask for: each is a form, with the page that shows what it would do, and an entry in Django's
log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.admin.utils import quote
from django.core.exceptions import BadRequest, PermissionDenied
from django.db import models
from django.forms import Form
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseRedirect
from django.urls import URLPattern, path
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import tag
from sqlqueue.admin.lists import KeysetAdmin
from sqlqueue.admin.pages import NUMBER, may, remember_change, show
from sqlqueue.database.transactions import outside_transactions
from sqlqueue.exceptions import SqlqueueError

COUNT, CONFIRMED = "count", "confirmed"  # parameters: count what it would do; do it
LOCK_TIMEOUT = 3.0  # seconds for which a request waits for transactions that publish: it occupies a worker meanwhile
MOST_CHOSEN = 1_000  # ticked rows of one operation
MOST_LISTED = 20  # rows on its page


Text = str | Promise  # of the latter the language is chosen when it is shown


class Done(NamedTuple):
    """What was done.

    text: what the user is told
    rows: those of which Django's log gets an entry; none: nothing was changed
    url: where the browser goes; "": where it came from
    entry: the text of the entries, if it differs
    """

    text: Text
    rows: Sequence[models.Model] = ()
    url: str = ""
    entry: Text = ""


class Operation(Form):
    """What users may do with rows of a list: a form, whose fields are what they are asked for. Each request makes a new
    one. `OperatedAdmin.operations` offers it on the pages of rows and in the actions of the list, shows its page, and
    writes the entry in Django's log."""

    name: ClassVar[str]  # in its URL
    label: ClassVar[Text]
    explanation: ClassVar[Text] = ""
    permissions: Sequence[str]  # besides the one to view the rows
    flag: ClassVar[int] = CHANGE  # of the entry in Django's log; 0: there is none
    dangerous: ClassVar[bool] = False
    asks: ClassVar[bool] = True  # False: it is done at once
    counts: ClassVar[bool] = False  # what it would do is counted before it can be confirmed
    inline: ClassVar[Text] = ""  # the heading of its form on the row's page; "": it is not there
    several: ClassVar[bool] = True  # False: it is for the page of one row, and not for ticked ones
    more: bool = False  # there are more rows than were read

    def __init__(self, model_admin: OperatedAdmin, request: HttpRequest, rows: Sequence[Any], data: Any = None) -> None:
        super().__init__(data, auto_id=f"{self.name}_%s")
        self.model_admin, self.log, self.request, self.rows = model_admin, model_admin.log, request, rows
        self.count = len(rows)
        self.button: Any = self.label  # that confirms it; "": there is nothing to do
        self.pinned: Mapping[str, object] | None = None  # what is sent with it in place of what the form was given

    def fits(self) -> bool:
        """Tell whether it makes sense for the rows. If not, it is not offered."""
        return True

    def preview(self) -> Sequence[Text]:
        """Return what it would do, as sentences. It may set `button` and `pinned`. If the operation counts, the form is
        valid. Raises SqlqueueError."""
        return []

    def run(self) -> Done:
        """Do it, with the values of the valid form. Raises SqlqueueError, which the form shows."""
        raise NotImplementedError

    def hidden(self) -> Iterable[tuple[str, object]]:
        """Return the names and values that choose the same ticked rows again."""
        return [(ACTION_CHECKBOX_NAME, str(row.pk)) for row in self.rows]

    @property
    def listed(self) -> Sequence[Any]:
        """The rows that the page lists."""
        return self.rows[:MOST_LISTED]

    @property
    def unlisted(self) -> int:
        """How many rows the page does not list."""
        return self.count - len(self.listed)

    @cached_property
    def permitted(self) -> bool:
        """Whether the user may do it."""
        return all(may(self.request, name) for name in self.permissions)

    @property
    def url(self) -> str:
        """The URL of its page, of one row if there is one."""
        return self.model_admin.url("operation", *(quote(row.pk) for row in self.rows[:1]), self.name)


class OperatedAdmin(KeysetAdmin):
    """A list whose rows have pages, and operations: on the row of a page, and on ticked rows."""

    operations: ClassVar[Sequence[type[Operation]]] = ()
    page_template: ClassVar[str]

    def page(self, request: HttpRequest, row: Any) -> tuple[object, Mapping[str, Any]]:
        """Return the title and the context of a row's page."""
        raise NotImplementedError

    @admin.display(description=_("state"))
    def state(self, row: Any) -> str:
        """Show unusual states only."""
        return tag(_("paused")) if row.paused else ""

    def set_paused(self, row: Any, paused: bool) -> bool:
        """Pause or resume a row; return whether that changed anything."""
        raise NotImplementedError

    def gone(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Answer for a row that is not there. Raises Http404."""
        raise Http404(_("This row does not exist: it may have been removed."))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show the page of a row."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        return self._row_page(request, object_id)

    def _row_page(self, request: HttpRequest, object_id: str, refused: Operation | None = None) -> HttpResponse:
        """Show the page of a row. refused: an operation with what is wrong with its form, which is on that page."""
        row = self.row(request, object_id)
        if row is None:
            return self.gone(request, object_id)
        title, context = self.page(request, row)
        offered = self.offered(request, row)
        forms: dict[str, dict[str, Any]] = {}
        for one in offered:
            if one.inline:
                shown = forms.setdefault(str(one.inline), {"form": one, "operations": []})
                shown["operations"].append(one)
        if refused is not None:
            forms.get(str(refused.inline), {})["form"] = refused
        context = {
            "row": row,
            "operations": [one for one in offered if not one.inline],
            "forms": forms,
            "operation": refused,
            "refused": refused if refused is not None and str(refused.inline) not in forms else None,
            **context,
        }
        return show(self, request, self.page_template, title, context, self.opts.app_label)

    def get_urls(self) -> list[URLPattern]:
        """Add the pages of operations. They run outside of ATOMIC_REQUESTS: an operation has transactions of its own,
        and waits for those that publish."""
        view = outside_transactions(self.admin_site.admin_view(self.operation_view))
        name = f"{self.opts.app_label}_{self.opts.model_name}_operation"
        return [
            path("operation/<slug:name>/", view, name=name),
            path("<path:object_id>/operation/<slug:name>/", view, name=name),
            *super().get_urls(),
        ]

    def offered(self, request: HttpRequest, row: Any = None) -> list[Operation]:
        """Return the operations that the user may do: with a row, or with ticked ones."""
        rows = [] if row is None else [row]
        made = [one(self, request, rows) for one in self.operations if rows or one.several]
        return [one for one in made if one.fits() and one.permitted]

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> dict[str, Any]:
        """Add the operations. action_location: which of its pages asks; Django passes it from 6.1 on."""
        options = {} if action_location is None else {"action_location": action_location}
        found = super().get_actions(request, **options)
        for one in self.offered(request):
            action = self.get_action(self._django_action(one), **options)
            if action is not None:  # None: the action is not offered at this location
                found[one.name] = action
        return found

    def _django_action(self, one: Operation) -> Callable[..., HttpResponse]:
        @admin.action(description=one.label)  # type: ignore[arg-type]
        def ask(_admin: object, request: HttpRequest, _chosen: object) -> HttpResponse:
            return self.operation_view(request, one.name)

        ask.__name__ = one.name
        return ask

    def ticked(self, request: HttpRequest) -> Sequence[Any]:
        """Return the ticked rows that are still there. Raises BadRequest for more than MOST_CHOSEN."""
        given = set(request.POST.getlist(ACTION_CHECKBOX_NAME))
        if isinstance(self.opts.pk, models.IntegerField):
            given = {value for value in given if NUMBER.fullmatch(value)}
        if len(given) > MOST_CHOSEN:
            raise BadRequest(f"{len(given)} rows were chosen; an operation takes {MOST_CHOSEN} at most")
        return self.rows_of(request, sorted(given))

    def rows_of(self, request: HttpRequest, keys: Sequence[str]) -> Sequence[Any]:
        """Return the rows with these primary keys."""
        return list(self.get_queryset(request).filter(pk__in=keys).order_by(*self.key))

    def operation_view(self, request: HttpRequest, name: str, object_id: str | None = None) -> HttpResponse:
        """Show the page of an operation with what it would do, or do it if the request confirms it."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        request.current_app = self.admin_site.name
        found = next((one for one in self.operations if one.name == name and (object_id or one.several)), None)
        if found is None:
            raise Http404
        if object_id:
            row = self.row(request, object_id)
            if row is None:
                return self.gone(request, object_id)
            rows: Sequence[Any] = [row]
        else:
            rows = self.ticked(request) if request.method == "POST" else ()
        confirmed = request.method == "POST" and (CONFIRMED in request.POST or not found.asks)
        counted = found.counts and COUNT in request.GET
        operation = found(self, request, rows, request.POST if confirmed else request.GET if counted else None)
        if not operation.permitted:
            raise PermissionDenied
        if request.method != "POST" and not (found.asks and object_id and request.method in ("GET", "HEAD")):
            return HttpResponseNotAllowed(["GET", "HEAD", "POST"] if found.asks and object_id else ["POST"])
        if not operation.count:
            messages.warning(request, _("None of the chosen rows exists any more. Nothing was done."))
            return HttpResponseRedirect(self.url("changelist"))
        back = self.url("change", quote(rows[0].pk)) if object_id else self.url("changelist")
        preview: Sequence[Text] = []
        try:
            if confirmed and operation.is_valid():
                return self._finish(request, operation, back)
            if not operation.counts or (counted and operation.is_valid()):
                preview = operation.preview()
        except SqlqueueError as error:
            operation.add_error(None, str(error))
        if object_id and operation.inline:
            return self._row_page(request, object_id, operation)
        pinned = request.GET if operation.pinned is None else operation.pinned
        hidden = [(name, value) for name, value in pinned.items() if name in operation.fields] if counted else []
        context = {"operation": operation, "preview": preview, "hidden": hidden, "back": back}
        if object_id:
            context |= {"url": operation.url, "row": rows[0]}
        else:
            context |= {"url": self.url("operation", name), "hidden": [*operation.hidden(), *hidden]}
        return show(self, request, "operation", operation.label, context)

    def _finish(self, request: HttpRequest, operation: Operation, back: str) -> HttpResponse:
        done = operation.run()
        if done.rows:
            remember_change(request)
            if operation.flag:
                entry: Any = list(done.rows), operation.flag, done.entry or done.text
                LogEntry.objects.log_actions(request.user.pk, *entry)
            messages.success(request, str(done.text))
        else:
            messages.warning(request, str(done.text))
        return HttpResponseRedirect(done.url or back)


class Pause(Operation):
    """Pause rows until they are resumed, by their admin's `set_paused`."""

    name, label = "pause", _("Pause")
    asks = False
    paused = True

    @property
    def permissions(self) -> Sequence[str]:  # type: ignore[override]
        """The permission of the model."""
        return [f"pause_{self.model_admin.opts.model_name}"]

    def fits(self) -> bool:
        """Tell whether the row of a page is not in this state yet."""
        return not self.rows or self.rows[0].paused != self.paused

    def run(self) -> Done:
        """Pause or resume them."""
        changed = [row for row in self.rows if self.model_admin.set_paused(row, self.paused)]
        what = {"what": ", ".join(map(str, changed or self.rows))}
        if not changed:
            return Done((_("%(what)s: paused already.") if self.paused else _("%(what)s: not paused.")) % what)
        text = _("%(what)s: paused. Running handlers finish.") if self.paused else _("%(what)s: resumed.")
        return Done(text % what, changed)


class Resume(Pause):
    """Take a pause back."""

    name, label = "resume", _("Resume")
    paused = False
