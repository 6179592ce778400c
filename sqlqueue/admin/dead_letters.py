"""Pages of dead letters: grouped by failure, listed, and chosen for actions."""

from __future__ import annotations

from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _

from sqlqueue.admin.actions.base import chosen_offsets, run_action
from sqlqueue.admin.actions.dead_letter_actions import DEAD_LETTER_ACTIONS, LISTED, DeadLetterAction
from sqlqueue.admin.pages import NUMBER, ModelAdmin, list_log, may, replica, require, show
from sqlqueue.core.outcomes import storable
from sqlqueue.database.log import current_log
from sqlqueue.models import ConsumerGroup
from sqlqueue.stats.dead_letters import MOST_READ, dead_letters, failures, has_more, topics_with_dead_letters
from sqlqueue.stats.search import messages_at

PAGE = 50


def urls(model_admin: ModelAdmin) -> list[URLPattern]:
    """Return the URLs of the pages. `sqlqueue_message_dead_letters` takes ?topic= and ?group=,
    `sqlqueue_message_dead_letter_list` also ?fingerprint= and ?before=."""
    pages = DeadLetterPages(model_admin)
    protected = model_admin.admin_site.admin_view
    return [
        path("dead-letters/", protected(pages.failures), name="sqlqueue_message_dead_letters"),
        path("dead-letters/list/", protected(pages.dead_letters), name="sqlqueue_message_dead_letter_list"),
        path("dead-letters/action/<slug:name>/", protected(pages.action), name="sqlqueue_message_dead_letter_action"),
    ]


def permitted_actions(request: HttpRequest) -> list[type[DeadLetterAction]]:
    """Return the actions that the user may run on dead letters."""
    return [one for one in DEAD_LETTER_ACTIONS.values() if all(may(request, name) for name in one.permissions)]


class DeadLetterPages:
    """The views. They belong to the admin of the messages."""

    def __init__(self, model_admin: ModelAdmin) -> None:
        self.admin = model_admin

    def failures(self, request: HttpRequest) -> HttpResponse:
        """Show the failures, most frequent first, of one topic or all and of one group or all."""
        require(request, "view_message")
        log = list_log(request)
        topics = topics_with_dead_letters(log)
        topic, group = self._topic(request.GET.get("topic", ""), topics), storable(request.GET.get("group", ""))
        groups = ConsumerGroup.objects.using(log.alias).order_by("consumer_group").distinct()
        context = {
            "found": failures(log, [topic] if topic else topics, group),
            "topics": topics,
            "groups": groups.values_list("consumer_group", flat=True),
            "topic": topic,
            "group": group,
            "most": MOST_READ,
            "actions": permitted_actions(request),
            "replica": replica(log),
        }
        return show(self.admin, request, "dead_letters", _("Dead letters"), context)

    def dead_letters(self, request: HttpRequest) -> HttpResponse:
        """List dead letters of one topic, newest first, of one group or all and of one fingerprint or any."""
        require(request, "view_message")
        log = list_log(request)
        topic, group = request.GET.get("topic", ""), storable(request.GET.get("group", ""))
        if not self._topic(topic, topics_with_dead_letters(log)):
            raise Http404
        fingerprint = storable(request.GET["fingerprint"]) if "fingerprint" in request.GET else None
        given = request.GET.get("before", "")
        before = int(given) if NUMBER.fullmatch(given) else None
        offsets = dead_letters(log, topic, PAGE + 1, group=group, fingerprint=fingerprint, before=before)
        query = {"topic": topic, "group": group} | ({} if fingerprint is None else {"fingerprint": fingerprint})
        context = {
            "rows": messages_at(log, offsets[:PAGE], *LISTED, "last_error"),
            "more": has_more(log, topic),
            "most": MOST_READ,
            "next_link": "?" + urlencode({**query, "before": offsets[PAGE - 1]}) if len(offsets) > PAGE else "",
            "first_link": "?" + urlencode(query) if given else "",
            "topic": topic,
            "group": group,
            "fingerprint": fingerprint,
            "actions": permitted_actions(request),
            "replica": replica(log),
        }
        return show(self.admin, request, "dead_letter_list", _("Dead letters of %s") % topic, context)

    def action(self, request: HttpRequest, name: str) -> HttpResponse:
        """Ask for confirmation of an action on dead letters, or carry it out."""
        if name not in DEAD_LETTER_ACTIONS:
            raise Http404
        action_class = DEAD_LETTER_ACTIONS[name]
        require(request, "view_message", *action_class.permissions)
        topic, group = request.POST.get("topic", ""), storable(request.POST.get("group", ""))
        if request.method == "POST" and not self._topic(topic, topics_with_dead_letters(current_log())):
            raise Http404
        site, fingerprint = self.admin.admin_site.name, storable(request.POST.get("fingerprint", ""))
        failures_url = reverse(f"{site}:sqlqueue_message_dead_letters")
        success_url = f"{failures_url}?{urlencode({'topic': topic, 'group': group})}"
        offsets = None if "all" in request.POST else chosen_offsets(request)
        url = reverse(f"{site}:sqlqueue_message_dead_letter_action", args=[name])
        action = action_class(topic, group, fingerprint, offsets, success_url, site)
        return run_action(self.admin, request, action, url)

    def _topic(self, name: str, known: list[str]) -> str:
        return name if name in known else ""
