"""The findings that a user may see, each with links to the pages where something can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from django.http import HttpRequest
from django.utils.translation import gettext as _

from sqlqueue.admin.pages import may, page_url
from sqlqueue.stats import finding_kinds
from sqlqueue.stats.finding_kinds import Finding

# Which permission shows a finding of a kind, besides that of the page. Other kinds are shown to all who see the page.
# The admin of an app with an effect adds those of its findings.
PERMISSIONS = {
    finding_kinds.AWAY: "view_consumergroup",
    finding_kinds.PAUSED: "view_consumergroup",
    finding_kinds.OUTSIDE_HOURS: "view_consumergroup",
    finding_kinds.BUDGET_SPENT: "view_consumergroup",
    finding_kinds.STUCK: "view_consumergroup",
    finding_kinds.UNOWNED: "view_consumergroup",
    finding_kinds.BEHIND: "view_consumergroup",
    finding_kinds.FAILS: "view_consumergroup",
    finding_kinds.FALLS_BEHIND: "view_consumergroup",
    finding_kinds.EPOCH: "view_consumergroup",
    finding_kinds.CHANGE: "view_topic",
    finding_kinds.DEAD_LETTERS: "view_message",
    finding_kinds.UNREAD: "view_topic",
    finding_kinds.REFUSED: "view_scheduledmessage",
    finding_kinds.LATE: "view_scheduledmessage",
}

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
    visible = [one for one in every if one.kind not in PERMISSIONS or may(request, PERMISSIONS[one.kind])]
    linked = [(one, list(_links(request, one, group_url))) for one in visible]
    return VisibleFindings(linked, len(every) - len(visible))


def _links(request: HttpRequest, finding: Finding, group_url: Callable[[tuple[str, str]], str]) -> Iterable[Link]:
    if finding.offset is not None:
        text = _("Message %(offset)d") % {"offset": finding.offset}
        yield text, page_url(request, "message", "change", finding.offset)
    if finding.kind == finding_kinds.DEAD_LETTERS:
        query = {"topic": finding.topic, "group": finding.group} if finding.group else {"topic": finding.topic}
        yield _("Its dead letters"), page_url(request, "message", "dead_letters", **query)
    if finding.group:
        yield _("The group's page"), group_url((finding.topic, finding.group))
    if finding.kind in (finding_kinds.UNREAD, finding_kinds.CHANGE):
        yield _("The topic's page"), page_url(request, "topic", "change", finding.topic)
    if finding.kind in (finding_kinds.REFUSED, finding_kinds.LATE):
        yield _("Scheduled messages"), page_url(request, "scheduledmessage", "changelist")
    if finding.kind in LINKS:
        yield LINKS[finding.kind](request)
