"""Who may do what with work items: a permission for each kind of action, and the teams of a topic, which are Django's
groups."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import get_user_model

from sqlqueue.contrib.people.topics import topics
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX

VIEW, WORK, ASSIGN, REVIEW = "view_workitem", "work_on_workitem", "assign_workitem", "review_workitem"
SEEN_BY = (VIEW, WORK, REVIEW, ASSIGN)


def closed_topics(user: Any) -> list[str]:
    """Return the topics whose teams the user does not belong to; none for a superuser."""
    return [] if user.is_superuser else team_topics(user, own=False)


def team_topics(user: Any, own: bool = True) -> list[str]:
    """Return the topics of the user's teams, or of `own` False those of other teams alone; with their dead-letter
    topics, unless those have their own. One query, unless no topic names any."""
    named = {topic: options.teams for topic, options in topics().items() if options.teams}
    teams = set(user.groups.values_list("name", flat=True)) if named and hasattr(user, "groups") else set()
    found = [topic for topic, of_topic in named.items() if teams.isdisjoint(of_topic) != own]
    dead = [topic + DEAD_LETTER_SUFFIX for topic in found]
    return found + [topic for topic in dead if topic not in topics()]


def sees_items(user: Any) -> bool:
    """Tell whether the user may see items at all."""
    return any(user.has_perm(f"sqlqueue_people.{one}") for one in SEEN_BY)


def may_on(user: Any, topic: str, *codenames: str) -> bool:
    """Tell whether the user has one of these permissions, and belongs to a team of the topic, if it has any."""
    return any(user.has_perm(f"sqlqueue_people.{one}") for one in codenames) and topic not in closed_topics(user)


def user_named(name: str, topic: str, *codenames: str) -> Any | None:
    """Return the active user of a name with one of these permissions for a topic; None if there is none."""
    users = get_user_model()
    try:
        found = users._default_manager.get_by_natural_key(name)
    except users.DoesNotExist:
        return None
    return found if found.is_active and may_on(found, topic, *codenames) else None
