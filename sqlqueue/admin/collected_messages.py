"""Collected messages: what topics with `keep_collected` had in the log."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import key_id
from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.models import CollectedMessage

MOST_FOUND = 1_000  # rows of one search


@admin.register(CollectedMessage)
class CollectedMessageAdmin(KeysetAdmin):
    """The list of collected messages, newest first. The search finds those of an offset, an id or a key."""

    list_display = ("message_offset", "topic", "key_and_id", "ends", "created_at", "collected_at")
    search_fields = ("=message_offset", "=message_id", "=partition_key")
    exclude = ("body",)

    @admin.display(description=_("key and id"))
    def key_and_id(self, row: CollectedMessage) -> str:
        """Show key and id, cut where they are long."""
        return key_id(row.partition_key, row.message_id)

    @admin.display(description=_("outcomes"))
    def ends(self, row: CollectedMessage) -> str:
        """Show its outcome in each group."""
        lines = ((group, end.get("outcome", "")) for group, end in sorted(row.outcomes.items()))
        return format_html_join("", '<div class="sqlqueue-outcome">{}: {}</div>', lines) or "–"

    def get_queryset(self, request: HttpRequest) -> QuerySet[CollectedMessage]:
        """Return the rows without bytes, which no page shows."""
        return super().get_queryset(request).defer("body")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search each column by its own index: a condition over several would read the table."""
        term = search_term.strip()
        if not term:
            return queryset, False
        searches: list[dict[str, Any]] = [{"message_id": term}, {"partition_key": term}]
        if term.isascii() and term.isdigit() and len(term) < 19:
            searches.append({"message_offset": int(term)})
        found = [
            list(queryset.filter(**one).order_by("-pk").values_list("pk", flat=True)[: MOST_FOUND + 1])
            for one in searches
        ]
        if any(len(keys) > MOST_FOUND for keys in found):
            text = _("More than %(most)d messages have been found, of which these are the newest %(most)d.")
            messages.info(request, text % {"most": MOST_FOUND})
        return queryset.filter(pk__in=[key for keys in found for key in keys[:MOST_FOUND]]), False
