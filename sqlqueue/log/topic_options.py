"""A topic's retention and history: those of the settings, unless an operator has overridden them.

The tables hold what applies. Only `runconsumers` writes the settings into them, at its start; publishers and consumers
that are running already do not, so that processes of several deployments do not undo each other's changes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from django.db import Error

from sqlqueue.conf import settings
from sqlqueue.core.bounds import CENTURY, duration
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, did_you_mean
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.settings import HISTORIES
from sqlqueue.database import retries
from sqlqueue.database.log import Log
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.log.layouts import with_present
from sqlqueue.models import Topic

logger = logging.getLogger("sqlqueue")

CHANGEABLE = ("retention", "history")
FIXED = ("partitions", "priorities")
FOR_EVER = "for ever"


class HasOptions(Protocol):
    """A topic, or its stats."""

    @property
    def name(self) -> str: ...
    @property
    def overridden(self) -> tuple[str, ...]: ...


class Difference(NamedTuple):
    """An option of which the tables hold another value than the settings. overridden: by an operator. Retention
    is in seconds, None for ever."""

    topic: str
    option: str
    stored: Any
    wanted: Any
    overridden: bool

    @property
    def shortens(self) -> bool:
        """Tell whether messages are kept for less long than before."""
        if self.option != "retention" or self.wanted is None:
            return False
        return self.stored is None or bool(self.wanted < self.stored)


def differences(topic: HasOptions, options: Sequence[str] = CHANGEABLE) -> list[Difference]:
    """Return where a topic differs from the settings of this process; the retention of dead letters never does."""
    wanted = settings.topic(topic.name)
    compared = [name for name in options if not (name == "retention" and topic.name.endswith(DEAD_LETTER_SUFFIX))]
    return [
        Difference(topic.name, name, stored, getattr(wanted, name), name in topic.overridden)
        for name in compared
        if (stored := _stored(topic, name)) != getattr(wanted, name)
    ]


def _stored(topic: HasOptions, option: str) -> Any:
    """Return a topic's option; of its partitions those of the present epoch, where they were read with it."""
    stored = getattr(topic, option)
    return getattr(topic, "present_partitions", stored) if option == "partitions" else stored


def all_differences(log: Log, options: Sequence[str] = CHANGEABLE) -> Iterator[Difference]:
    """Yield where the topics differ from the settings of this process, by name."""
    topics = Topic.objects.using(log.alias)
    for topic in (with_present(topics) if "partitions" in options else topics).order_by("name"):
        yield from differences(topic, options)


def apply_settings(log: Log) -> list[str]:
    """Let the settings' retention and history hold in every topic, but for overrides; return the topics that another
    transaction has locked, such as a collection: to be called again for these.

    A running consumer follows a new history within a second, and collection a new retention at its next iteration. It
    does not wait for locked rows, and writes only rows that differ.
    """
    left = {found.topic for found in all_differences(log) if not found.overridden}
    for name in sorted(left):
        try:
            changed = retries.run_once(log, _apply, log, name)
        except Error as error:
            if retries.classify(error) is not retries.ErrorKind.CONTENTION:
                raise
            break  # SQLite has one lock for all: the other topics would wait for it as long
        if changed is not None:
            left.remove(name)
        for one in changed or ():
            fields = {"topic": name, "option": one.option, "old": told(one.stored), "new": told(one.wanted)}
            if one.shortens:
                logger.warning(logfmt("topic_options_applied", **fields))
            else:
                logger.info(logfmt("topic_options_applied", **fields))
    return sorted(left)


def _apply(log: Log, name: str) -> list[Difference] | None:
    """Write a topic's row in the caller's transaction; return what was changed, None if another has locked the row."""
    topics = Topic.objects.using(log.alias).filter(name=name)
    topic = topics.select_for_update(skip_locked=True).first()
    if topic is None:
        return None if topics.exists() else []
    changed = [found for found in differences(topic) if not found.overridden]
    if changed:
        topics.update(**{found.option: found.wanted for found in changed})
    return changed


def override(log: Log, topic: str, values: Mapping[str, Any]) -> list[Difference]:
    """Let exactly these options of a topic be what is given, whatever the settings say; the settings of this process
    hold for the others at once, so that {} takes every override back. Return what has changed.

    values: retention (seconds or a timedelta, None for ever) and history. Raises ConfigurationError for an unknown
    option, an invalid value, or an unknown topic.
    """
    checked = checked_overrides(topic, values)
    return retries.run(log, _override, log, topic, checked)


def _override(log: Log, name: str, values: Mapping[str, Any]) -> list[Difference]:
    topics = Topic.objects.using(log.alias).filter(name=name)
    topic = topics.select_for_update().first()
    if topic is None:
        raise ConfigurationError(f"there is no topic {name!r}")
    wanted, dead_letters = settings.topic(name), name.endswith(DEAD_LETTER_SUFFIX)
    before = {option: (getattr(topic, option), option in topic.overridden) for option in CHANGEABLE}
    after = {option: (values.get(option, getattr(wanted, option)), option in values) for option in CHANGEABLE}
    if dead_letters:
        after["retention"] = before["retention"]
    changed = [option for option in CHANGEABLE if before[option] != after[option]]
    if changed:
        flags = {f"{option}_overridden": after[option][1] for option in changed}
        topics.update(**flags, **{option: after[option][0] for option in changed})
    return [Difference(name, option, before[option][0], after[option][0], after[option][1]) for option in changed]


def checked_overrides(topic: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is to be overridden, retention in seconds. Raises ConfigurationError for what cannot be."""
    problems: list[str] = []
    checked = dict(values)
    for option, value in values.items():
        if option not in CHANGEABLE:
            problems.append(f"{option!r} cannot be overridden.{did_you_mean(str(option), CHANGEABLE)}")
        elif option == "history" and value not in HISTORIES:
            problems.append(f"history must be one of {', '.join(HISTORIES)}, not {value!r}")
        elif option == "retention" and topic.endswith(DEAD_LETTER_SUFFIX):
            problems.append(f"{topic!r} holds dead letters, which are kept until they are replayed or discarded")
        elif option == "retention" and value is not None:
            checked[option] = duration(value, option, problems, 0, CENTURY)
    if problems:
        raise ConfigurationError("; ".join(problems))
    return checked


def told(value: Any) -> str:
    """Return an option's value as text."""
    return FOR_EVER if value is None else f"{value:.15g} s" if isinstance(value, float) else str(value)
