"""The `SQLQUEUE` setting as attributes: read lazily, and again when a test overrides it. sqlqueue.core.settings
says what it may say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import connections

from sqlqueue.core.bounds import CENTURY, duration
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, did_you_mean
from sqlqueue.core.periodic import PERIODIC_TOPIC, ScheduleDefinition
from sqlqueue.core.relay import is_relay_topic
from sqlqueue.core.settings import HealthLimits, ParsedSetting, QueueOptions, TopicOptions, read
from sqlqueue.exceptions import ConfigurationError

OF_SETTING = ("home", "aliases", "several")
_at_work: ContextVar[str] = ContextVar("sqlqueue_database", default="")  # the alias of the log that is worked on


def app_retention(name: str, default: float | None = None) -> float | None:
    """Return the seconds that an app's setting, such as SQLQUEUE_PEOPLE, has as its RETENTION, its only option; None:
    for ever. Raises ConfigurationError if the setting is wrong."""
    given = getattr(django_settings, name, {})
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"{name} must be a dict, not {given!r}")
    for option in given:
        if option != "RETENTION":
            raise ConfigurationError(f"{name} has no option {option!r}.{did_you_mean(str(option), ['RETENTION'])}")
    if (value := given.get("RETENTION", default)) is None:
        return None
    problems: list[str] = []
    seconds = duration(value, f"{name}['RETENTION']", problems, 0.0, CENTURY)
    if problems:
        raise ConfigurationError(problems[0])
    return seconds


class Settings:
    """The validated settings as attributes: `settings.LEASE_DURATION`. Reading one raises ConfigurationError if any is
    wrong."""

    home: str  # the alias that the setting names: of the log that has tasks, batches and schedules
    aliases: tuple[str, ...]  # of all databases that have a log, `home` first
    several: bool  # whether there are several logs

    def __init__(self) -> None:
        # Returns the topics that another setting declares (TASKS), each with the priorities that it has unless TOPICS
        # says otherwise.
        self.declared_elsewhere: Callable[[], Mapping[str, int]] = dict
        self._served = ""  # the alias of the log that this process serves

    @cached_property
    def _parsed(self) -> ParsedSetting:
        return read(getattr(django_settings, "SQLQUEUE", {}))

    @cached_property
    def reading(self) -> ParsedSetting:
        """The setting as it was read; another object once it has been read again."""
        if problems := self.problems():
            raise ConfigurationError("; ".join(problems))
        return self._parsed

    def __getattr__(self, name: str) -> Any:
        if name not in OF_SETTING and name not in QueueOptions.__dataclass_fields__:
            raise AttributeError(name)
        found = self.reading
        # So that it is an attribute until forget().
        value = self.__dict__[name] = getattr(found if name in OF_SETTING else found.options, name)
        if self.__dict__.get("reading") is not found:  # which another thread has called meanwhile
            self.__dict__.pop(name, None)
        return value

    # -- databases ----------------------------------------------------------------------------------------------------

    @property
    def DATABASE(self) -> str:
        """The alias of the log that is worked on: the one that this process serves, or this context is on (see `at`),
        else `home`."""
        return _at_work.get() or self._served or self.home

    def label(self, alias: str) -> str:
        """Return an alias as it is shown where there are several logs; "" if there is one only."""
        return alias if self.several else ""

    def databases_of(self, topic: str) -> tuple[str, ...]:
        """Return the aliases of the databases that a topic's keys are spread over, in order. Dead letters are where
        their topic's messages are; what is on its way to a database is on each other one."""
        if is_relay_topic(topic):
            return (self.DATABASE,)
        named = self.reading.topics.get(topic.removesuffix(DEAD_LETTER_SUFFIX))
        return tuple(named.databases) if named is not None and named.databases else (self.home,)

    @contextmanager
    def at(self, alias: str) -> Iterator[None]:
        """Let DATABASE be this alias in this block, for this thread."""
        token = _at_work.set(alias)
        try:
            yield
        finally:
            _at_work.reset(token)

    @property
    def is_at_database(self) -> bool:
        """Whether this thread is in a block of `at`."""
        return bool(_at_work.get())

    def serve(self, alias: str) -> None:
        """Let DATABASE be this alias in this whole process, which consumes there."""
        self._served = alias

    # -- topics -------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicOptions:
        """Return the options of a topic, whether TOPICS names it or not."""
        options, named = self.reading.options, self.reading.topics.get(name)
        if is_relay_topic(name):  # collected once acked
            return TopicOptions(1, 1, 0.0, options.HISTORY)
        if named is not None and "priorities" in options.TOPICS[name]:
            return named
        priorities = self.declared_elsewhere().get(name, 1)
        if named is not None:
            return named if priorities == 1 else replace(named, priorities=priorities)
        partitions = 1 if name == PERIODIC_TOPIC else options.PARTITIONS
        return TopicOptions(partitions, priorities, options.RETENTION, options.HISTORY)

    def names(self, topic: str) -> bool:
        """Tell whether TOPICS names a topic."""
        return topic in self.reading.topics

    def schedules(self) -> dict[str, ScheduleDefinition]:
        """Return the periodic schedules of SCHEDULES by name."""
        return self.reading.schedules

    def declares(self, topic: str) -> bool:
        """Tell whether TOPICS names a topic, or another setting declares it."""
        return topic in self.reading.topics or topic in self.declared_elsewhere()

    def health_limits(self, topic: str) -> HealthLimits:
        """Return the health limits of this topic's groups."""
        named = self.reading.limits
        return named.get(topic) or named[""]

    def problems(self) -> list[str]:
        """Return everything that is wrong with the setting, for the system checks."""
        reading = self._parsed
        if reading.problems:
            return reading.problems
        named = {"DATABASE": reading.options.DATABASE}
        for topic, options in reading.topics.items():
            named |= {f"TOPICS[{topic!r}]['databases'] ({alias!r})": alias for alias in options.databases}
        if reading.options.READ_ALIAS is not None:
            named["READ_ALIAS"] = reading.options.READ_ALIAS
        known = ", ".join(connections)
        of_home = {PERIODIC_TOPIC, *self.declared_elsewhere()} & reading.topics.keys()
        return [
            f"TOPICS[{topic!r}]['databases'] cannot be {list(reading.topics[topic].databases)}: tasks and periodic "
            f"schedules are on DATABASE, {reading.options.DATABASE!r}"
            for topic in sorted(of_home)
            if reading.topics[topic].databases not in ((), (reading.options.DATABASE,))
        ] + [
            f"{name} names the alias {alias!r}, which DATABASES does not have; it has: {known}"
            for name, alias in named.items()
            if alias not in connections
        ]

    @property
    def reading_alias(self) -> str:
        """The alias for what only looks: READ_ALIAS, a replica of `home`, or DATABASE without one and
        on other logs. What it finds may be behind: nothing that changes the queue may follow from it."""
        return str(self.READ_ALIAS or self.home) if self.home == self.DATABASE else self.DATABASE

    def is_replica(self, alias: str) -> bool:
        """Tell whether an alias is READ_ALIAS, and not one of a log."""
        return alias == self.READ_ALIAS and alias not in self.aliases

    def given_alias(self) -> str:
        """Return the alias that the setting names, whatever else is wrong with it; the default if it names none."""
        return self._parsed.options.DATABASE

    def forget(self) -> None:
        """Read the setting again at its next use."""
        for name in ("_parsed", "reading", *OF_SETTING, *QueueOptions.__dataclass_fields__):
            self.__dict__.pop(name, None)


settings = Settings()


def _changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "SQLQUEUE":
        settings.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.conf")
