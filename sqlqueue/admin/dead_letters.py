"""Dead letters: sorted by how they failed; each kind can be looked through, replayed and discarded."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from sqlqueue.admin.keyset import cut, place
from sqlqueue.admin.letter_orders import LETTER_ORDERS, LISTED, LetterOrder
from sqlqueue.admin.orders import chosen_offsets, give
from sqlqueue.admin.pages import show
from sqlqueue.admin.permissions import ModelAdmin, may, require
from sqlqueue.conf import settings
from sqlqueue.log.letters import MOST_READ, failures, has_more, letters, topics_with_letters
from sqlqueue.log.search import messages_at
from sqlqueue.models import ConsumerGroup

PAGE = 50


def urls(model_admin: ModelAdmin) -> list[URLPattern]:
    """Return the pages' addresses: `sqlqueue_message_dead_letters` (takes ?topic= and ?group=), `…_letters`,
    `…_letter_order`."""
    pages = DeadLetterPages(model_admin)
    safe = model_admin.admin_site.admin_view
    return [
        path("dead-letters/", safe(pages.kinds), name="sqlqueue_message_dead_letters"),
        path("dead-letters/letters/", safe(pages.letters), name="sqlqueue_message_letters"),
        path("dead-letters/order/<slug:name>/", safe(pages.order), name="sqlqueue_message_letter_order"),
    ]


def offered(request: HttpRequest) -> list[type[LetterOrder]]:
    """Return what the user may do with dead letters."""
    return [kind for kind in LETTER_ORDERS.values() if all(may(request, codename) for codename in kind.permissions)]


class DeadLetterPages:
    """The pages, inside the admin of the messages."""

    def __init__(self, model_admin: ModelAdmin) -> None:
        self.admin = model_admin

    def kinds(self, request: HttpRequest) -> HttpResponse:
        """Show how often which failure was met, of one topic or all, of one group or all."""
        require(request, "view_message")
        alias = settings.DATABASE
        topics = topics_with_letters(alias)
        topic, group = self._topic(request.GET.get("topic", ""), topics), request.GET.get("group", "")
        groups = ConsumerGroup.objects.using(alias).order_by("consumer_group").distinct()
        context = {
            "found": failures(alias, [topic] if topic else topics, group),
            "topics": topics,
            "groups": groups.values_list("consumer_group", flat=True),
            "topic": topic,
            "group": group,
            "most": MOST_READ,
            "orders": offered(request),
        }
        return show(self.admin, request, "dead_letters", _("Dead letters"), context)

    def letters(self, request: HttpRequest) -> HttpResponse:
        """Show dead letters of one topic, newest first: of one group or all, of one fingerprint or any."""
        require(request, "view_message")
        alias = settings.DATABASE
        topic, group = request.GET.get("topic", ""), request.GET.get("group", "")
        if not self._topic(topic, topics_with_letters(alias)):
            raise Http404
        fingerprint = request.GET.get("fingerprint")
        before, after = place(request)

        def of(**options: int | None) -> list[int]:
            return letters(alias, topic, PAGE + 1, group=group, fingerprint=fingerprint, **options)

        offsets = of(after=after) if after is not None else []
        if len(offsets) < PAGE:
            after, offsets = None, of(before=before)
        page = cut(messages_at(alias, offsets, *LISTED, "last_error"), PAGE, before=before, after=after)
        which = {"topic": topic, "group": group} | ({} if fingerprint is None else {"fingerprint": fingerprint})
        context = {
            "page": page,
            "more": has_more(alias, topic),
            "most": MOST_READ,
            "older_link": page.older and "?" + urlencode({**which, "before": page.older}),
            "newer_link": page.newer and "?" + urlencode({**which, "after": page.newer}),
            "newest_link": "?" + urlencode(which),
            "topic": topic,
            "group": group,
            "fingerprint": fingerprint,
            "orders": offered(request),
        }
        return show(self.admin, request, "letters", _("Dead letters of %s") % topic, context)

    def order(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for an order about dead letters, or carry it out."""
        if name not in LETTER_ORDERS:
            raise Http404
        kind = LETTER_ORDERS[name]
        require(request, "view_message", *kind.permissions)
        topic, group = request.POST.get("topic", ""), request.POST.get("group", "")
        if request.method == "POST" and not self._topic(topic, topics_with_letters(settings.DATABASE)):
            raise Http404
        site, print_ = self.admin.admin_site.name, request.POST.get("fingerprint", "")
        back = reverse(f"{site}:sqlqueue_message_dead_letters")
        done_at = f"{back}?{urlencode({'topic': topic, 'group': group})}"
        offsets = None if "all" in request.POST else chosen_offsets(request)
        address = reverse(f"{site}:sqlqueue_message_letter_order", args=[name])
        return give(self.admin, request, kind(topic, group, print_, offsets, done_at, site), address)

    def _topic(self, name: str, known: list[str]) -> str:
        return name if name in known else ""
