"""Scheduled messages: those that wait for their time, and those that the log has refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import code, harmless, key_id, show_previews, tag
from sqlqueue.admin.lists import KeysetChangeList
from sqlqueue.admin.scheduled_pages import ScheduledPages
from sqlqueue.models import ScheduledMessage


@admin.register(ScheduledMessage)
class ScheduledMessageAdmin(ScheduledPages):
    """The list of scheduled messages: refused ones first, with the reason, and then by the time at which they are
    due."""

    list_display = ("id", "topic", "state", "due_at", "preview", "key_and_id")
    key = ("due_at", "id")
    list_filter = ("refused",)
    search_fields = ("=id",)

    def sections(self) -> Sequence[Q]:
        """Return the conditions for refused and waiting messages. Index: one that begins with `refused`."""
        return [Q(refused=True), Q(refused=False)]

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> list[Any]:
        """Return a page, each row with the beginning of its payload."""
        found = super().get_page(request, changes)
        show_previews(self.model, found)
        return found

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows without payloads: a page shows only their beginnings."""
        return super().get_queryset(request).defer("payload", "headers", "body")

    @admin.display(description=_("payload"))
    def preview(self, message: Any) -> str:
        """Show the beginning of the payload."""
        return code(message.preview)

    @admin.display(description=_("key and id"))
    def key_and_id(self, message: Any) -> str:
        """Show key and id, cut where they are long, and the target group, if there is one."""
        html = key_id(message.partition_key, message.message_id)
        if not message.target_group:
            return html
        return format_html("{}<div>{}</div>", html, _("for %s alone") % message.target_group)

    @admin.display(description=_("state"))
    def state(self, message: Any) -> str:
        """Show why it was refused, or that it waits."""
        if message.refused:
            return format_html("{} {}", tag(_("refused")), Truncator(harmless(message.refusal or "")).chars(300))
        return str(_("waits"))
