"""Lists in sections, the most important one first, each paged by the key of an index.

No row is counted or skipped: each page is a range of an index, so that it takes as long in a long table as in a short
one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import models
from django.db.models import Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, re_path, reverse
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import download, harmless, key_id
from sqlqueue.admin.pages import NUMBER, ReadOnlyAdmin, Replica, list_log, replica
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.core.outcomes import storable
from sqlqueue.database.log import Log
from sqlqueue.log.status import within_calendar
from sqlqueue.stats.texts import moment

MOST_SEARCHED = max(KEY_LENGTH, ID_LENGTH)  # characters: no column that is searched is longer
SECTION = "listed_in_section"  # the attribute of a row: the number of its section
FROM = "from"  # the parameter of a page, which begins after this row: [section, value of each key column]


class KeysetChangeList(ChangeList):
    """Django's change list, from a row onward."""

    model_admin: KeysetAdmin
    log: Log  # of the database that the list is read from
    replica: Replica | None
    next_start: str | None = None  # the row after which the next page begins

    def get_queryset(self, request: HttpRequest, *args: Any, **options: Any) -> QuerySet[Any]:
        """Return the rows on the database that lists are read from."""
        self.log = list_log(self.model_admin.log, request)
        self.replica = replica(self.log)
        return super().get_queryset(request, *args, **options).using(self.log.alias)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the only order that there is."""
        return list(self.model_admin.key)

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Leave out the parameters of pages and searches, which are no filters."""
        own, prefixes = (FROM, *self.model_admin.own_parameters), tuple(self.model_admin.own_prefixes)
        params = super().get_filters_params(params)
        return {name: value for name, value in params.items() if not (name in own or name.startswith(prefixes))}

    def get_query_string(self, new_params: Mapping[str, Any] | None = None, remove: Any = None) -> str:
        """Begin at the first row, unless told otherwise."""
        return super().get_query_string({FROM: None, **(new_params or {})}, remove)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        self.is_first = FROM not in request.GET
        self.result_list = self.model_admin.get_page(request, self)
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count, self.show_admin_actions = False, bool(self.result_list)
        self.can_show_all, self.multi_page = True, False

    @property
    def next_link(self) -> str | None:
        """The URL of the next page."""
        return None if self.next_start is None else self.get_query_string({FROM: self.next_start})

    @property
    def first_link(self) -> str | None:
        """The URL of the first page; None on it."""
        return None if self.is_first else self.get_query_string()


class KeysetAdmin(ReadOnlyAdmin):
    """A read-only table in sections, each ordered by `key`: columns of an index, the last ones unique; with "-" before
    them they descend. Search fields, if any, must begin with "=" and have an index."""

    change_list_template = "admin/sqlqueue/keyset_change_list.html"
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()
    empty_value_display = "–"
    list_per_page = 50
    key: Sequence[str] = ("-pk",)
    own_parameters: Sequence[str] = ()  # query parameters that are no filters of Django's
    own_prefixes: Sequence[str] = ()  # with which the names of more of them begin

    class Media:
        css = {"all": ("sqlqueue/admin.css",)}

    def sections(self) -> Sequence[Q]:
        """Return the conditions of the sections, the most important one first."""
        return [Q()]

    def url(self, page: str, *args: object) -> str:
        """Return the URL of a page of this site: "changelist", "change", …"""
        name = f"admin:{self.opts.app_label}_{self.opts.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)

    def row(self, request: HttpRequest, object_id: str) -> Any:
        """Return the row with the key of a URL; None if there is none."""
        return self.get_object(request, unquote(object_id))

    @admin.display(description=_("key and id"))
    def key_and_id(self, row: Any) -> str:
        """Show a message's key and id, cut where they are long."""
        return key_id(row.partition_key, row.message_id)

    def get_urls(self) -> list[URLPattern]:
        """Add the download of bytes, where rows may have some."""
        urls: list[URLPattern] = super().get_urls()
        if not self.has_bytes:
            return urls
        view = self.admin_site.admin_view(self.body_view)
        name = f"{self.opts.app_label}_{self.opts.model_name}_body"
        return [re_path(r"^(?P<number>-?[0-9]+)/body/$", view, name=name), *urls]

    def body_view(self, request: HttpRequest, number: str) -> HttpResponse:
        """Return the bytes of a row as a file to save."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if not NUMBER.fullmatch(number):
            raise Http404
        return download(self.get_queryset(request), int(number))

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Replace columns of times by ones that show the zone, and columns of texts by ones that are harmless."""
        fields = {field.name: field for field in self.opts.fields if field.name not in (self.list_display_links or ())}
        return [_cell(fields[name]) if name in fields else name for name in super().get_list_display(request)]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the change list that is paged by key."""
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups of the list's own filters. Another lookup on a column would scan the table, and the
        database may refuse it (an invalid regular expression, half a range)."""
        column, _lookup, kind = lookup.partition("__")
        if column not in {"pk", *(field.name for field in self.opts.fields)}:
            return super().lookup_allowed(lookup, value, request)
        return column in self.get_list_filter(request) and kind in ("exact", "isnull") and storable(value) == value

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find nothing by a text that is longer than any column: a database may refuse it as a pattern."""
        if len(search_term) > MOST_SEARCHED:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return the rows of the page that the request asks for, and set where the next one starts."""
        first, values = self.start(request) or (0, None)
        rows: list[Any] = []
        for number, section in enumerate(self.sections()):
            if number < first:
                continue
            queryset = changes.queryset.filter(section).order_by(*self.key)
            if number == first and values is not None:
                queryset = queryset.filter(after(self.key, values))
            for row in queryset[: self.list_per_page - len(rows) + 1]:
                if len(rows) == self.list_per_page:
                    changes.next_start = self.start_after(rows[-1])
                    return rows
                setattr(row, SECTION, number)
                rows.append(row)
        return rows

    def start_after(self, row: Any) -> str:
        """Return the parameter of a page that begins after a row."""
        values = [section_of(row), *(row.serializable_value(column.lstrip("-")) for column in self.key)]
        return json.dumps(values, default=str)  # times to the microsecond

    def start(self, request: HttpRequest) -> tuple[int, list[Any]] | None:
        """Return the section and the key after which the page begins; None if the parameter is not one that a page has
        made."""
        fields = {field.name: field for field in self.opts.fields} | {"pk": self.opts.pk}
        try:
            section, *values = json.loads(request.GET.get(FROM, ""))
            if not isinstance(section, int) or len(values) != len(self.key) or None in values:
                return None
            columns = [column.lstrip("-") for column in self.key]
            return section, [_comparable(fields[column].to_python(value)) for column, value in zip(columns, values)]
        except (ValueError, TypeError, ValidationError, OverflowError, RecursionError):
            return None


def _comparable(value: Any) -> Any:
    """Return a value that every database can compare a column with."""
    if isinstance(value, str):
        return storable(value)
    return within_calendar(value) if isinstance(value, datetime) else value


def _cell(field: models.Field[Any, Any]) -> Any:
    """Return a list's column: of times with their zone, of texts without what a browser would obey or hide."""
    show: Callable[[Any], str]
    if isinstance(field, models.DateTimeField):
        show = moment
    elif isinstance(field, (models.CharField, models.TextField)) and not field.choices:
        show = harmless
    else:
        return field.name

    def shown(row: models.Model) -> str | None:
        value = getattr(row, field.name)
        return None if value is None else show(value) or None

    shown.__name__ = field.name  # the cell's class
    shown.short_description = field.verbose_name  # type: ignore[attr-defined]
    return shown


def section_of(row: Any) -> int:
    """Return the number of the section that a row was found in."""
    return int(getattr(row, SECTION, 0))


def after(columns: Sequence[str], values: Sequence[Any]) -> Q:
    """Return the condition for the rows after one with these values: by the first column, which an index serves, and
    then by all of them. Columns that begin with "-" descend."""
    names = [column.lstrip("-") for column in columns]
    beyond = ["lt" if column.startswith("-") else "gt" for column in columns]
    later = Q()
    for index, (name, lookup) in enumerate(zip(names, beyond)):
        same = dict(zip(names[:index], values[:index]))
        later |= Q(**same, **{f"{name}__{lookup}": values[index]})
    return Q(**{f"{names[0]}__{beyond[0]}e": values[0]}) & later
