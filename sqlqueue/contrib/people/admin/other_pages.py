"""What people's work adds to other pages: a section of a message's page, and the link of the finding that work is
overdue."""

from __future__ import annotations

from collections.abc import Collection

from django.http import HttpRequest
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _

from sqlqueue.admin import messages, overview
from sqlqueue.contrib.people.admin.permissions import SEEN_BY, closed_topics
from sqlqueue.contrib.people.models import WorkItem
from sqlqueue.contrib.people.survey import OVERDUE_ITEMS
from sqlqueue.database.log import current_log

APP = "sqlqueue_people"
MINE = f"{APP}_mywork_changelist"
MOST_ITEMS = 100  # on the page of a message: a group makes another one only after a rewind


def _sees_items(request: HttpRequest) -> bool:
    return any(request.user.has_perm(f"{APP}.{one}") for one in SEEN_BY)


def section_of_message(request: HttpRequest, offsets: Collection[int]) -> str:
    """Return the section of a message's page: the items that groups have made of it, or of its dead letter, as far as
    the user may see them, the newest MOST_ITEMS."""
    if not _sees_items(request):
        return ""
    items = WorkItem.objects.using(current_log().alias).filter(message_offset__in=sorted(offsets))
    seen = items.exclude(topic__in=closed_topics(request.user)).order_by("-message_offset", "-pk")
    found = list(seen.only("topic", "consumer_group", "state", "assignee", "handed_over_at")[: MOST_ITEMS + 1])
    context = {"items": found[:MOST_ITEMS], "more": len(found) > MOST_ITEMS}
    return render_to_string(f"admin/{APP}/message_section.html", context, request)


def link_to_mine(request: HttpRequest) -> overview.Link:
    """Return the link of the finding, without a URL for users who see no work items."""
    if not _sees_items(request):
        return _("My work"), ""
    return _("My work"), reverse(f"admin:{MINE}", current_app=getattr(request, "current_app", "admin"))


messages.SECTIONS.append(section_of_message)
overview.LINKS[OVERDUE_ITEMS.name] = link_to_mine
