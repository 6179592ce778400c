"""The topics that people work on, as projects declare them, and the app's setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from typing import Any

from django.utils.module_loading import autodiscover_modules

from sqlqueue.conf import app_retention, settings
from sqlqueue.contrib.people.exceptions import HandOver
from sqlqueue.core.bounds import CENTURY, SHORTEST, duration
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_consumed
from sqlqueue.exceptions import ConfigurationError

PEOPLE = "people"  # the group of the consumer that hands every message over


@dataclass(frozen=True)
class PeopleTopic:
    """What holds for the work items of a topic. every_message: each message becomes one; decisions, notices: the topics
    that get what people decided, and what they should know; teams: the names of the Django groups whose members may
    work on the items, (): all who have the permission; within: seconds after which an item is overdue."""

    every_message: bool = False
    decisions: str | None = None
    notices: str | None = None
    teams: tuple[str, ...] = ()
    within: float | None = None


NO_OPTIONS = PeopleTopic()
declared: dict[str, PeopleTopic] = {}


def work_on(
    topic: str,
    *,
    every_message: bool = False,
    decisions: str | None = None,
    notices: str | None = None,
    teams: Sequence[str] = (),
    within: float | timedelta | None = None,
) -> None:
    """Declare what holds for the work items of a topic, in an app's `consumers` module.

    every_message: each message becomes a work item, by a consumer of the group "people"; without it, those that a
    handler hands over. decisions: the topic that gets what people decide; notices: the topic that gets what happens to
    an item. teams: the names of the Django groups whose members may see and do the work; none: all who have the
    permission. within: seconds or a timedelta, from 0.001 s to 100 years, after which an item is overdue.

    Raises ConfigurationError for an option that cannot work, and for a topic that is declared otherwise already.
    """
    made = _checked(topic, every_message, decisions, notices, teams, within)
    if declared.setdefault(topic, made) != made:
        raise ConfigurationError(f"work_on({topic!r}) is there twice, with different options: leave one out")
    if every_message:
        from sqlqueue.consumers.declare.registry import registering  # has models, which there are none of at first

        registering(topic, {"group": PEOPLE, "ordering": "none", "max_attempts": None})(hand_over_everything)


def hand_over_everything(delivery: Any) -> None:
    """Hand a message over, whatever is in it."""
    raise HandOver


def _checked(topic: str, every_message: Any, decisions: Any, notices: Any, teams: Any, within: Any) -> PeopleTopic:
    checked_consumed(topic)
    name, problems = f"work_on({topic!r})", list[str]()
    if not isinstance(every_message, bool):
        problems.append(f"every_message must be True or False, not {every_message!r}")
    for option, other in (("decisions", decisions), ("notices", notices)):
        if other is not None:
            problems += _against_target(topic, every_message, option, other)
    teams = [teams] if isinstance(teams, str) else teams
    if not isinstance(teams, (list, tuple)) or not all(isinstance(team, str) and team for team in teams):
        problems.append(f"teams must be a list with the names of Django groups, not {teams!r}")
    if within is not None:
        within = duration(within, "within", problems, SHORTEST, CENTURY)
    if problems:
        raise ConfigurationError(f"{name}: {'; '.join(problems)}")
    return PeopleTopic(every_message, decisions, notices, tuple(teams), within)


def _against_target(topic: str, every_message: Any, option: str, other: Any) -> list[str]:
    """Return what is wrong with the topic that decisions or notices are published to."""
    problems = []
    try:
        checked_consumed(other)
    except ConfigurationError as error:
        problems.append(f"{option} must be the name of a topic, not {other!r}: {error}")
    if str(other).endswith(DEAD_LETTER_SUFFIX):
        problems.append(f"{option} must be a topic that is published to, not one of dead letters: {other!r}")
    if other == topic and every_message is True:
        problems.append(f"{option} is the topic itself, so that its messages would be work again")
    return problems


# -- what was declared ------------------------------------------------------------------------------------------------


@cache
def _discover() -> None:
    """Import the apps' consumers modules, which declare topics: a web process has not done so. An error is raised each
    time: without its teams a topic's items would be open to all."""
    autodiscover_modules(settings.CONSUMERS_MODULE)


def topics() -> Mapping[str, PeopleTopic]:
    """Return what was declared, by topic."""
    _discover()
    return declared


def topic_options(topic: str) -> PeopleTopic:
    """Return what holds for a topic's work items: a dead-letter topic that is not declared has that of its topic."""
    found = topics()
    return found.get(topic) or found.get(topic.removesuffix(DEAD_LETTER_SUFFIX), NO_OPTIONS)


def retention() -> float | None:
    """Return for how many seconds an item that is done is kept, as SQLQUEUE_PEOPLE["RETENTION"] says; None: for ever.
    Raises ConfigurationError if that setting is wrong."""
    return app_retention("SQLQUEUE_PEOPLE")
