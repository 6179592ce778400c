"""Lists that are paged by primary key, newest first.

No row is counted or skipped: each page is one range of an index, so that it takes as long in a long table as in a short
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.db import models
from django.db.models import QuerySet
from django.http import HttpRequest

from sqlqueue.admin.cells import harmless
from sqlqueue.admin.pages import ReadOnlyAdmin, Replica, list_log, replica
from sqlqueue.core.keys import ID_LENGTH, KEY_LENGTH
from sqlqueue.core.outcomes import storable
from sqlqueue.database.log import Log
from sqlqueue.stats.moments import moment

Column = TypeVar("Column", bound=Callable[[models.Model], Any])
NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
MOST_SEARCHED = max(KEY_LENGTH, ID_LENGTH)  # characters: no column that is searched is longer
BEFORE, AFTER = "before", "after"  # parameters of a page: its rows have keys below, or above, this one


class Page(NamedTuple):
    """One page. rows: newest first; older: below this key there are older rows, newer: above this one there are newer
    rows (None: there are none)."""

    rows: Sequence[Any]
    older: int | None = None
    newer: int | None = None


def page_keys(request: HttpRequest) -> tuple[int | None, int | None]:
    """Return the keys of the request: the page's rows are to be below the first, or above the second."""

    def key(name: str) -> int | None:
        value = request.GET.get(name, "")
        return int(value) if NUMBER.fullmatch(value) else None

    before = key(BEFORE)
    return before, key(AFTER) if before is None else None


def page_of(rows: QuerySet[Any], most: int, before: int | None, after: int | None) -> Page:
    """Return a page of at most `most` rows, by their integer primary key."""
    if after is not None:
        above = list(rows.filter(pk__gt=after).order_by("pk")[: most + 1])
        if len(above) >= most:
            return cut(above[::-1], most, after=after)
        before = None  # too few for a page: the newest ones
    below = rows if before is None else rows.filter(pk__lt=before)
    return cut(list(below.order_by("-pk")[: most + 1]), most, before=before)


def cut(found: Sequence[Any], most: int, *, before: int | None = None, after: int | None = None) -> Page:
    """Return a page of the rows found below or above a key, newest first. found: up to one row more than the page
    holds, which tells that there are more."""
    more = len(found) > most
    if after is not None:
        rows = found[1:] if more else found
        return Page(rows, rows[-1].pk, rows[0].pk if more else None)
    rows = found[:most]
    newer = None if before is None else rows[0].pk if rows else before - 1
    return Page(rows, rows[-1].pk if more else None, newer)


class KeysetChangeList(ChangeList):
    """Django's change list, paged by key."""

    model_admin: KeysetAdmin
    page: Page
    log: Log  # of the database that the list is read from
    replica: Replica | None

    def get_queryset(self, request: HttpRequest, *args: Any, **options: Any) -> QuerySet[Any]:
        """Return the rows on the database that lists are read from."""
        self.log = list_log(request)
        self.replica = replica(self.log)
        return super().get_queryset(request, *args, **options).using(self.log.alias)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the only order that there is: newest first."""
        return ["-pk"]

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Leave out the parameters of pages and searches, which are no filters."""
        params = super().get_filters_params(params)
        prefixes = tuple(self.model_admin.own_prefixes)
        return {name: value for name, value in params.items() if not (name in self._own or name.startswith(prefixes))}

    def get_query_string(self, new_params: Mapping[str, Any] | None = None, remove: Any = None) -> str:
        """Leave out the keys of the present page: another filter begins at its newest rows."""
        return super().get_query_string({BEFORE: None, AFTER: None, **(new_params or {})}, remove)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        self.page = self.model_admin.get_page(request, self)
        self.result_list = self.page.rows
        self.result_count = self.full_result_count = len(self.page.rows)
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.page.rows)
        self.can_show_all, self.multi_page = True, False

    @property
    def older_link(self) -> str | None:
        """The URL of the next older page."""
        return None if self.page.older is None else self.get_query_string({BEFORE: self.page.older})

    @property
    def newer_link(self) -> str | None:
        """The URL of the next newer page."""
        return None if self.page.newer is None else self.get_query_string({AFTER: self.page.newer})

    @property
    def newest_link(self) -> str:
        """The URL of the newest page."""
        return self.get_query_string()

    @property
    def _own(self) -> tuple[str, ...]:
        return (BEFORE, AFTER, *self.model_admin.own_parameters)


def _time(field: models.DateTimeField[Any, Any]) -> Callable[[models.Model], str]:
    """Return a list column that shows a field's times with their zone."""

    def shown(row: models.Model) -> str:
        return moment(getattr(row, field.name))

    return _column(field, shown)


def _text(field: models.Field[Any, Any]) -> Callable[[models.Model], str | None]:
    """Return a list column that shows a field's texts without what a browser would obey or hide."""

    def shown(row: models.Model) -> str | None:
        return harmless(getattr(row, field.name) or "") or None

    return _column(field, shown)


def _shown(field: models.Field[Any, Any]) -> Any:
    if isinstance(field, models.DateTimeField):
        return _time(field)
    plain = isinstance(field, (models.CharField, models.TextField)) and not field.choices
    return _text(field) if plain else field.name


def _column(field: models.Field[Any, Any], shown: Column) -> Column:
    shown.__name__ = field.name  # the cell's class
    shown.short_description = field.verbose_name  # type: ignore[attr-defined]
    return shown


class KeysetAdmin(ReadOnlyAdmin):
    """A read-only table, paged by key. Search fields, if any, must begin with "=" and have an index."""

    change_list_template = "admin/sqlqueue/keyset_change_list.html"
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()
    empty_value_display = "–"
    list_per_page = 50
    own_parameters: Sequence[str] = ()  # query parameters that are no filters of Django's
    own_prefixes: Sequence[str] = ()  # with which the names of more of them begin

    class Media:
        css = {"all": ("sqlqueue/admin.css",)}

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Replace columns of times by ones that show the zone, and columns of texts by ones that are harmless."""
        fields = {field.name: field for field in self.opts.fields if field.name not in (self.list_display_links or ())}
        return [_shown(fields[name]) if name in fields else name for name in super().get_list_display(request)]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the change list that is paged by key."""
        return KeysetChangeList

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Allow only the lookups of the list's own filters. Another lookup on a column would scan the table, and the
        database may refuse it (an invalid regular expression, half a range)."""
        column, _, kind = lookup.partition("__")
        if column not in {"pk", *(field.name for field in self.opts.fields)}:
            return super().lookup_allowed(lookup, value, request)
        filters = {one[0] if isinstance(one, (tuple, list)) else one for one in self.get_list_filter(request)}
        return column in filters and kind in ("exact", "isnull") and storable(value) == value

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find nothing by a text that is longer than any column: a database may refuse it as a pattern."""
        if len(search_term) > MOST_SEARCHED:
            return queryset.none(), False
        return super().get_search_results(request, queryset, search_term)

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> Page:
        """Return the page that the request asks for."""
        return page_of(changes.queryset, self.list_per_page, *page_keys(request))
