"""Lists in sections, the most important one first, each paged by the key of an index, so that no row is counted or
skipped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from sqlqueue.admin.keyset import KeysetAdmin, KeysetChangeList, Page
from sqlqueue.core.outcomes import storable
from sqlqueue.log.seek import within_calendar

SECTION = "listed_in_section"  # the attribute of a row: the number of its section
FROM = "from"  # the parameter of a page, which begins after this row: [section, value of each key column]


class SectionedChangeList(KeysetChangeList):
    """Django's change list, from a row onward."""

    model_admin: SectionedAdmin
    next_key: str | None = None
    is_first = True

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        """Return the order within a section."""
        return list(self.model_admin.key)

    @property
    def next_link(self) -> str | None:
        """The URL of the next page."""
        return None if self.next_key is None else self.get_query_string({FROM: self.next_key})

    @property
    def first_link(self) -> str | None:
        """The URL of the first page; None on it."""
        return self.get_query_string({FROM: None}) if not self.is_first else None

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        self.is_first = FROM not in request.GET
        super().get_results(request)


class SectionedAdmin(KeysetAdmin):
    """A read-only table in sections, each ordered by `key` (columns of an index, the last ones unique;
    with "-" before them they descend)."""

    change_list_template = "admin/sqlqueue/sectioned_change_list.html"
    key: Sequence[str] = ("id",)
    own_parameters = (FROM,)

    def sections(self) -> Sequence[Q]:
        """Return the conditions of the sections, the most important one first."""
        return [Q()]

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[KeysetChangeList]:
        """Return the change list that is paged by sections and keys."""
        return SectionedChangeList

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> Page:
        """Return the page that the request asks for."""
        assert isinstance(changes, SectionedChangeList)
        start = self._start(request.GET.get(FROM, ""))
        rows: list[Any] = []
        for number, section in enumerate(self.sections()):
            if start is not None and number < start[0]:
                continue
            queryset = changes.queryset.filter(section).order_by(*self.key)
            if start is not None and number == start[0]:
                queryset = queryset.filter(after(self.key, start[1]))
            for row in queryset[: self.list_per_page - len(rows) + 1]:
                if len(rows) == self.list_per_page:
                    changes.next_key = self._key_of(rows[-1])
                    return Page(rows)
                setattr(row, SECTION, number)
                rows.append(row)
        return Page(rows)

    def _key_of(self, row: Any) -> str:
        values = [section_of(row), *(row.serializable_value(column.lstrip("-")) for column in self.key)]
        return json.dumps(values, default=str)  # times to the microsecond

    def _start(self, given: str) -> tuple[int, list[Any]] | None:
        """Return a section and the values of a key; None if the parameter is not one that a page has made."""
        try:
            section, *values = json.loads(given)
            if not isinstance(section, int) or len(values) != len(self.key):
                return None
            fields = {field.name: field for field in self.opts.fields}
            columns = [column.lstrip("-") for column in self.key]
            return section, [_comparable(fields[column].to_python(value)) for column, value in zip(columns, values)]
        except (ValueError, TypeError, ValidationError, OverflowError, RecursionError):
            return None


def _comparable(value: Any) -> Any:
    """Return a value that every database can compare a column with."""
    if isinstance(value, str):
        return storable(value)
    return within_calendar(value) if isinstance(value, datetime) else value


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
