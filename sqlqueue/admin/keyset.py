"""Lists that stay quick however long the table is: newest first, and from there to older and newer ones by key.

No row is counted, none is skipped: a page is one look into an index, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.contrib.admin import ShowFacets
from django.contrib.admin.views.main import ChangeList
from django.db.models import QuerySet
from django.http import HttpRequest

from sqlqueue.admin.permissions import ReadOnlyAdmin

BEFORE, AFTER = "before", "after"  # parameters of a page: what stands below, or above, this key


class Page(NamedTuple):
    """Rows, newest first; below which key there are older ones, above which there are newer ones (None: there are
    not)."""

    rows: Sequence[Any]
    older: int | None = None
    newer: int | None = None


def place(request: HttpRequest) -> tuple[int | None, int | None]:
    """Return the keys that a page is to stand below, and above, as its address says."""

    def key(name: str) -> int | None:
        value = request.GET.get(name, "")
        return int(value) if value.isascii() and value.isdigit() and len(value) < 19 else None

    before = key(BEFORE)
    return before, key(AFTER) if before is None else None


def page_of(rows: QuerySet[Any], most: int, before: int | None, after: int | None) -> Page:
    """Return a page of at most so many rows, by their whole primary key."""
    if after is not None:
        above = list(rows.filter(pk__gt=after).order_by("pk")[: most + 1])
        if len(above) >= most:
            return cut(above[::-1], most, after=after)
        before = None  # too few for a page: the newest ones
    below = rows if before is None else rows.filter(pk__lt=before)
    return cut(list(below.order_by("-pk")[: most + 1]), most, before=before)


def cut(found: Sequence[Any], most: int, *, before: int | None = None, after: int | None = None) -> Page:
    """Return a page of what was found below or above a key, newest first: one more than the page holds, if there is."""
    more = len(found) > most
    if after is not None:
        rows = found[1:] if more else found
        return Page(rows, rows[-1].pk, rows[0].pk if more else None)
    rows = found[:most]
    newer = None if before is None else rows[0].pk if rows else before - 1
    return Page(rows, rows[-1].pk if more else None, newer)


class KeysetChangeList(ChangeList):
    """Django's list, with pages by key."""

    model_admin: KeysetAdmin
    page: Page

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Newest first, always."""
        return ["-pk"]

    def get_filters_params(self, params: Any = None) -> dict[str, Any]:
        """Leave out what is no filter."""
        kept = super().get_filters_params(params)
        return {name: value for name, value in kept.items() if name not in self._own}

    def get_query_string(self, new_params: Mapping[str, Any] | None = None, remove: Any = None) -> str:
        """Another filter begins at its newest rows."""
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
        """The address of the older ones."""
        return None if self.page.older is None else self.get_query_string({BEFORE: self.page.older})

    @property
    def newer_link(self) -> str | None:
        """The address of the newer ones."""
        return None if self.page.newer is None else self.get_query_string({AFTER: self.page.newer})

    @property
    def newest_link(self) -> str:
        """The address of the newest ones."""
        return self.get_query_string()

    @property
    def _own(self) -> tuple[str, ...]:
        return (BEFORE, AFTER, *self.model_admin.own_parameters)


class KeysetAdmin(ReadOnlyAdmin):
    """A read-only table in pages by key. Search fields, if any, must begin with "=" and have an index."""

    change_list_template = "admin/sqlqueue/keyset_change_list.html"
    show_full_result_count = False
    show_facets = ShowFacets.NEVER
    sortable_by = ()
    list_per_page = 50
    own_parameters: Sequence[str] = ()  # of the list's address, which are no filters of Django's

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Pages by key."""
        return KeysetChangeList

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> Page:
        """Return the page that the address asks for."""
        return page_of(changes.queryset, self.list_per_page, *place(request))
