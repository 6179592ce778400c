"""Messages: searched without counting or scanning, shown with what became of them, and what can be done with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from sqlqueue.admin import dead_letters
from sqlqueue.admin.keyset import KeysetAdmin, KeysetChangeList, Page, place
from sqlqueue.admin.message_orders import MESSAGE_ORDERS
from sqlqueue.admin.message_search import SearchForm, found
from sqlqueue.admin.orders import chosen_offsets, give
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import may, require
from sqlqueue.conf import settings
from sqlqueue.log.fates import ACKED, DEAD, FAILING, HANDED, OTHERS, UNREAD, WAITING, fates
from sqlqueue.models import Message, Receipt

MOST_SHOWN = 100_000  # characters of a payload
MOST_RECEIPTS = 100
STATES = {
    UNREAD: gettext_lazy("not read yet"),
    HANDED: gettext_lazy("in hand"),
    FAILING: gettext_lazy("failing, waits for its next attempt"),
    WAITING: gettext_lazy("waiting"),
    ACKED: gettext_lazy("acknowledged"),
    DEAD: gettext_lazy("dead letter"),
    OTHERS: gettext_lazy("for another group"),
}


def pretty(value: Any) -> str:
    """Return JSON as people read it, the beginning if it is very long."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "\n…"


@admin.register(Message)
class MessageAdmin(KeysetAdmin):
    """The log."""

    change_list_template = "admin/sqlqueue/messages.html"
    list_display = ("offset", "topic", "partition", "partition_key", "message_id", "created_at", "remark")
    list_display_links = ("offset",)
    own_parameters = tuple(SearchForm.base_fields)

    @admin.display(description=gettext_lazy("remark"))
    def remark(self, message: Message) -> str:
        """Say whether it is a dead letter, or for one group alone."""
        if message.failed_group:
            return _("dead letter of %(group)s: %(fingerprint)s") % {
                "group": message.failed_group,
                "fingerprint": message.fingerprint,
            }
        return _("for %s alone") % message.target_group if message.target_group else ""

    def get_urls(self) -> list[URLPattern]:
        """Add the orders' pages, and the dead letters'."""
        order = self.admin_site.admin_view(self.order_view)
        return [
            path("order/<slug:name>/", order, name="sqlqueue_message_order"),
            *dead_letters.urls(self),
            *super().get_urls(),
        ]

    def get_page(self, request: HttpRequest, changes: KeysetChangeList) -> Page:
        """Search."""
        form = SearchForm(request.GET)
        changes.search = form  # type: ignore[attr-defined]
        if not form.is_valid():
            return Page([])
        page, changes.searched_to = found(form, self.list_per_page, *place(request))  # type: ignore[attr-defined]
        return page

    def get_actions(self, request: HttpRequest) -> dict[str, Any]:
        """Offer what the user may do."""

        def asked(name: str) -> Callable[..., HttpResponse]:
            return lambda _admin, request, _chosen: self.order_view(request, name)

        kinds = MESSAGE_ORDERS.values()
        offered = [kind for kind in kinds if all(may(request, codename) for codename in kind.permissions)]
        return super().get_actions(request) | {kind.name: (asked(kind.name), kind.name, kind.label) for kind in offered}

    def order_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for an order about the ticked messages, or carry it out."""
        if name not in MESSAGE_ORDERS:
            raise Http404
        kind = MESSAGE_ORDERS[name]
        require(request, "view_message", *kind.permissions)
        site = self.admin_site.name
        order = kind(chosen_offsets(request), reverse(f"{site}:sqlqueue_message_changelist"))
        return give(self, request, order, reverse(f"{site}:sqlqueue_message_order", args=[name]))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        """Show a message and what became of it in every group."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        message = self.get_object(request, unquote(object_id))
        if message is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined]
        alias = settings.DATABASE
        receipts = Receipt.objects.using(alias).filter(message_offset=message.offset).order_by("consumer_group", "id")
        shown = list(receipts[:MOST_RECEIPTS])
        context = {
            "message": message,
            "payload": pretty(message.payload),
            "headers": pretty(message.headers) if message.headers else "",
            "fates": [(fate, STATES[fate.state]) for fate in fates(alias, message)],
            "receipts": shown,
            "unlisted": receipts.count() - len(shown) if len(shown) == MOST_RECEIPTS else 0,
            "orders": [
                kind
                for kind in MESSAGE_ORDERS.values()
                if not message.failed_group and all(may(request, codename) for codename in kind.permissions)
            ],
            "letter_orders": dead_letters.offered(request) if message.failed_group else [],
        }
        return show(self, request, "message", _("Message %d") % message.offset, context)
