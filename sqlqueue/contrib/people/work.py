"""What people do with work items. Each change is one transaction with its event in the audit trail, and with the
messages that it publishes.

Every change says which version of the item the person has seen, and raises WorkItemChanged if it has another one by
now: of two people who decide at the same time one is refused. What does not suit the item's state raises
InvalidMessage. The callers check permissions. All changes are called alike:

    finish(number, version, by, *values, comment="")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any

from django.db.models import Value

from sqlqueue.conf import settings
from sqlqueue.contrib.people.effect import notice
from sqlqueue.contrib.people.exceptions import WorkItemChanged
from sqlqueue.contrib.people.models import (
    APPROVED,
    ASSIGNED,
    COMMENTED,
    DEFERRED,
    DONE,
    FINISHED,
    OPEN,
    RELEASED,
    REVIEW,
    SENT_BACK,
    SUBMITTED,
    USER_LENGTH,
    WorkItem,
    WorkItemEvent,
)
from sqlqueue.contrib.people.topics import topic_options
from sqlqueue.core.keys import checked_text, numbered
from sqlqueue.database import clock, retries
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.database.limits import check_result
from sqlqueue.database.log import Log, home_log
from sqlqueue.exceptions import InvalidMessage
from sqlqueue.log.encoding import encode
from sqlqueue.log.publish import publish
from sqlqueue.log.published_topic import IGNORED

COMMENT_LENGTH = 10_000  # characters
HEAVY = ("payload", "headers", "body")
CHANGED = "the work item has been changed meanwhile, by another person or in another window: look at it again"

Change = Callable[..., dict[str, Any]]  # of the item, the user and values: the columns to change


def change(kind: str) -> Callable[[Change], Callable[..., None]]:
    """Return a decorator: a function of an item, the user and values, which returns the columns to change, becomes the
    whole change, a function of the item's number, its version, the user, the values, a comment and its log (that of
    DATABASE). kind: of its event.
    """

    def decorator(columns: Change) -> Callable[..., None]:
        @wraps(columns)
        def changed(
            number: int, version: int, by: str, *values: Any, comment: str = "", log: Log | None = None
        ) -> None:
            if kind == SENT_BACK and not comment.strip():
                raise InvalidMessage("say in a comment why it is sent back")
            _checked(by, comment)
            log = log or home_log()
            retries.run(log, _changed, log, number, version, by, kind, columns, values, comment)

        return changed

    return decorator


@change(ASSIGNED)
def assign(item: WorkItem, by: str, to: str | None = None) -> dict[str, Any]:
    """Give an item, or its review, to a user (None: to oneself)."""
    to = by if to is None else to
    if item.state == REVIEW and to == item.author:
        raise InvalidMessage("another person than its author has to review it")
    return {"assignee": to, "deferred_until": None}


@change(RELEASED)
def release(item: WorkItem, by: str) -> dict[str, Any]:
    """Give an item back: it is unassigned then, and no longer deferred."""
    return {"assignee": "", "deferred_until": None}


@change(DEFERRED)
def defer(item: WorkItem, by: str, until: datetime) -> dict[str, Any]:
    """Put an item of one's own, or an unassigned one, off until a time (aware, in the future): it is the user's."""
    _check_own(item, by)
    log = Log.of(item._state.db or settings.DATABASE)
    if until <= clock.now(log):
        raise InvalidMessage(f"an item can be deferred to a time in the future only, not to {until}")
    # Not as Django would store it: the queue's columns have UTC, also with USE_TZ off.
    return {"assignee": by, "deferred_until": Value(log.dialect.time(until))}


@change(SUBMITTED)
def submit(item: WorkItem, by: str, result: Any, reviewer: str = "") -> dict[str, Any]:
    """Ask for a review of a result (JSON) before it is the decision. reviewer: the user to ask, "" for any."""
    if reviewer == by:
        raise InvalidMessage("another person has to review it")
    _check_own(item, by)
    return {"state": REVIEW, "assignee": reviewer, "author": by, "result": result, "deferred_until": None}


@change(SENT_BACK)
def send_back(item: WorkItem, by: str) -> dict[str, Any]:
    """Refuse the result of an item in review: its author has it again. The comment says why."""
    _check_reviewer(item, by)
    return {"state": OPEN, "assignee": item.author}


@change(APPROVED)
def approve(item: WorkItem, by: str) -> dict[str, Any]:
    """Make the result of an item in review the decision. Its author may not."""
    _check_reviewer(item, by)
    return {"state": DONE, "assignee": item.author, "finished_at": DatabaseNow()}


@change(FINISHED)
def finish(item: WorkItem, by: str, result: Any) -> dict[str, Any]:
    """Make a result (JSON) the decision, without a review: of one's own item, or an unassigned one."""
    _check_own(item, by)
    changes = {"state": DONE, "assignee": by, "author": by, "result": result, "deferred_until": None}
    return {**changes, "finished_at": DatabaseNow()}


def add_comment(number: int, by: str, comment: str, log: Log | None = None) -> None:
    """Add a comment, whatever state the item has; its version stays."""
    if not comment.strip():
        raise InvalidMessage("a comment needs a text")
    _checked(by, comment)
    log = log or home_log()
    retries.run(log, _commented, log, number, by, comment)


def _commented(log: Log, number: int, by: str, comment: str) -> None:
    # Locked: collection may be about to delete it.
    item = WorkItem.objects.using(log.alias).defer(*HEAVY).select_for_update().filter(pk=number).first()
    if item is None:
        raise WorkItemChanged(CHANGED)
    event = WorkItemEvent(item=item, kind=COMMENTED, made_by=by, assignee=item.assignee, comment=comment)
    event.save(using=log.alias, force_insert=True)
    _publish_notice(log, item, event)


def _check_own(item: WorkItem, by: str) -> None:
    if item.state != OPEN:
        raise InvalidMessage("the item is in review: approve it, or send it back")
    if item.assignee not in ("", by):
        raise InvalidMessage(f"the item is assigned to {item.assignee!r}: assign it to yourself first")


def _check_reviewer(item: WorkItem, by: str) -> None:
    if item.state != REVIEW:
        raise InvalidMessage("the item is not in review")
    if item.author == by:
        raise InvalidMessage("another person than its author has to review it")
    if item.assignee not in ("", by):
        raise InvalidMessage(f"the review is assigned to {item.assignee!r}: assign it to yourself first")


def _checked(by: str, comment: str) -> None:
    checked_text(by, "the user's name", USER_LENGTH)
    checked_text(comment, "the comment", COMMENT_LENGTH)


def _changed(
    log: Log, number: int, version: int, by: str, kind: str, columns: Change, values: Sequence[Any], comment: str
) -> None:
    items = WorkItem.objects.using(log.alias)
    item = items.defer(*HEAVY).filter(pk=number).exclude(state=DONE).first()
    if item is None or item.version != version:
        raise WorkItemChanged(CHANGED)
    changes = columns(item, by, *values)
    result = changes.get("result")
    if result is not None:
        check_result(log, encode(result, "result"), settings.MAX_PAYLOAD_BYTES)
    checked_text(changes["assignee"], "the assignee's name", USER_LENGTH)
    now = {"version": version + 1, "updated_at": DatabaseNow()}
    # Two that read the same version: the second one waits here for the first one's commit, and finds no such row.
    if not items.filter(pk=number, version=version).update(**changes, **now):
        raise WorkItemChanged(CHANGED)
    event = WorkItemEvent(item=item, kind=kind, made_by=by, assignee=changes["assignee"], comment=comment or None)
    event.result, event.deferred_until = result, changes.get("deferred_until")
    event.save(using=log.alias, force_insert=True)
    if changes.get("state") == DONE:
        _publish_decision(log, item, by, changes)
    _publish_notice(log, item, event)


def _publish_decision(log: Log, item: WorkItem, by: str, changes: dict[str, Any]) -> None:
    """Publish the result, for which payload types hold, with the item that it is about in its headers."""
    decisions = topic_options(item.topic).decisions
    if decisions is None:
        return
    about = {
        "id": item.pk,
        "topic": item.topic,
        "key": item.partition_key,
        "message_id": item.message_id,
        "offset": item.message_offset,
        "group": item.consumer_group,
        "reason": item.reason or "",
        "author": changes.get("author", item.author),
        "decided_by": by,
    }
    id, result = f"work-item-{numbered(item.pk, log.label)}", changes.get("result", item.result)
    _publish(decisions, result, item.partition_key, id, {"work_item": about})


def _publish_notice(log: Log, item: WorkItem, event: WorkItemEvent) -> None:
    """Publish what has been done, for those who should know."""
    notices = topic_options(item.topic).notices
    if notices is not None:
        said = notice(item, event.kind, event.made_by, event.assignee, event.comment or "")
        _publish(notices, said, item.partition_key, f"work-item-{numbered(item.pk, log.label)}-{event.pk}")


def _publish(topic: str, payload: Any, key: str, id: str, headers: dict[str, Any] | None = None) -> None:
    """Publish a message of which none may be left out: what two items of a key say is not the same, whatever
    `unique_for` the topic has."""
    if publish(topic, payload, key=key, id=id, headers=headers, unique_for=False, relay=True).status == IGNORED:
        raise InvalidMessage(f"the topic {topic!r} has another message of the id {id!r} and the key {key!r} already")
