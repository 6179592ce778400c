"""The findings that a user may see, each with links to the pages where something can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from sqlqueue.admin.pages import may, page_url
from sqlqueue.stats.findings import CHANGE, DEAD_LETTERS, LATE, REFUSED, UNREAD, Finding

Link = tuple[str, str]  # text and URL, "" if the user may not see the page
LINKS: dict[str, Callable[[HttpRequest], Link]] = {}  # of findings of effects: their apps' admin adds them


class VisibleFindings(NamedTuple):
    """The findings that a user may see, each with its links, and the number of hidden ones."""

    findings: list[tuple[Finding, list[Link]]]
    hidden: int


def visible_findings(
    request: HttpRequest, findings: Iterable[Finding], group_url: Callable[[tuple[str, str]], str]
) -> VisibleFindings:
    """Return those that the user may see. group_url: returns the URL of the page of a (topic, group)."""
    every = list(findings)
    visible = [one for one in every if not one.kind.permission or may(request, one.kind.permission)]
    linked = [(one, list(_links(request, one, group_url))) for one in visible]
    return VisibleFindings(linked, len(every) - len(visible))


def _links(request: HttpRequest, finding: Finding, group_url: Callable[[tuple[str, str]], str]) -> Iterable[Link]:
    if finding.offset is not None:
        text = _("Message %(offset)d") % {"offset": finding.offset}
        yield text, page_url(request, "message", "change", finding.offset)
    if finding.kind == DEAD_LETTERS:
        query = {"topic": finding.topic, "group": finding.group} if finding.group else {"topic": finding.topic}
        yield _("Its dead letters"), page_url(request, "message", "dead_letters", **query)
    if finding.group:
        yield _("The group's page"), group_url((finding.topic, finding.group))
    if finding.kind in (UNREAD, CHANGE):
        yield _("The topic's page"), page_url(request, "topic", "change", finding.topic)
    if finding.kind in (REFUSED, LATE):
        yield _("Scheduled messages"), page_url(request, "scheduledmessage", "changelist")
    if finding.kind.name in LINKS:
        yield LINKS[finding.kind.name](request)
