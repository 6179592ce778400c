"""Lists in the order of what matters, in pages by key: sections that stand one after another, each with an index of its
own, so that no page counts or skips a row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from sqlqueue.admin.keyset import KeysetAdmin, KeysetChangeList, Page

SECTION = "listed_in_section"
FROM = "from"  # the parameter of a page: behind which row it begins: [section, value of each key column]


class OrderedChangeList(KeysetChangeList):
    """Django's list, from a row onward."""

    model_admin: OrderedAdmin
    next_key: str | None = None
    begins = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """As the page's sections have it."""
        return list(self.model_admin.key)

    @property
    def next_link(self) -> str | None:
        """The address of the page after this one."""
        return None if self.next_key is None else self.get_query_string({FROM: self.next_key})

    @property
    def first_link(self) -> str | None:
        """The address of the first page, where this is not it."""
        return self.get_query_string({FROM: None}) if not self.begins else None

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        self.begins = FROM not in request.GET
        super().get_results(request)


class OrderedAdmin(KeysetAdmin):
    """A read-only table in sections, each ordered by `key` (columns of an index, the last ones unique)."""

    change_list_template = "admin/sqlqueue/ordered_change_list.html"
    key: Sequence[str] = ("id",)
    own_parameters = (FROM,)

    def sections(self) -> Sequence[Q]:
        """Return what stands in which section, the most important first."""
        return [Q()]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        """Pages from a row onward."""
        return OrderedChangeList

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> Page:
        """Return the page that the address asks for."""
        assert isinstance(changes, OrderedChangeList)
        start = self._start(request.GET.get(FROM, ""))
        rows: list[Any] = []
        for number, section in enumerate(self.sections()):
            if start is not None and number < start[0]:
                continue
            some = changes.queryset.filter(section).order_by(*self.key)
            if start is not None and number == start[0]:
                some = some.filter(beyond(self.key, start[1]))
            for row in some[: self.list_per_page - len(rows) + 1]:
                if len(rows) == self.list_per_page:
                    changes.next_key = self._key_of(rows[-1])
                    return Page(rows)
                setattr(row, SECTION, number)
                rows.append(row)
        return Page(rows)

    def _key_of(self, row: Any) -> str:
        values = [section_of(row), *(row.serializable_value(column) for column in self.key)]
        return json.dumps(values, default=str)  # times to the microsecond

    def _start(self, given: str) -> tuple[int, list[Any]] | None:
        """Return a section and a key; None for an address that was made up."""
        try:
            section, *values = json.loads(given)
            if not isinstance(section, int) or len(values) != len(self.key):
                return None
            fields = {field.name: field for field in self.opts.fields}
            return section, [fields[column].to_python(value) for column, value in zip(self.key, values)]
        except (ValueError, TypeError, ValidationError):
            return None


def section_of(row: Any) -> int:
    """Return the number of the section that a row was found in."""
    return int(getattr(row, SECTION, 0))


def beyond(columns: Sequence[str], values: Sequence[Any]) -> Q:
    """Return what stands behind a row, by the first column, which an index serves, and then by all of them."""
    found = Q()
    for index, column in enumerate(columns):
        same = dict(zip(columns[:index], values[:index]))
        found |= Q(**same, **{f"{column}__gt": values[index]})
    return Q(**{f"{columns[0]}__gte": values[0]}) & found
