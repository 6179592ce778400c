"""The `SQLQUEUE` setting as attributes: read lazily, and again when a test overrides it. sqlqueue.core.settings
says what it may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import connections

from sqlqueue.core.bounds import read_options, seconds
from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, as_stored
from sqlqueue.core.periodic import PERIODIC_TOPIC
from sqlqueue.core.relay import is_relay_topic, relay_topic
from sqlqueue.core.settings import ParsedSetting, QueueOptions, TopicOptions, read
from sqlqueue.exceptions import ConfigurationError

OF_SETTING = ("aliases", "several")


@dataclass(frozen=True)
class AppOptions:
    """The options of an app's own setting, such as SQLQUEUE_PEOPLE."""

    RETENTION: float | None = seconds(None, none=True)


def app_retention(name: str, default: float | None = None) -> float | None:
    """Return the seconds that an app's setting, such as SQLQUEUE_PEOPLE, has as its RETENTION, its only option; None:
    for ever. Raises ConfigurationError if the setting is wrong."""
    problems: list[str] = []
    options = read_options(AppOptions, getattr(django_settings, name, {}), name, problems, RETENTION=default)
    if problems:
        raise ConfigurationError(problems[0])
    return options.RETENTION


class Settings:
    """The validated settings as attributes: `settings.LEASE_DURATION`. Reading one raises ConfigurationError if any is
    wrong."""

    DATABASE: str  # the alias of the log that has tasks, batches and schedules
    aliases: tuple[str, ...]  # of all databases that have a log, DATABASE first
    several: bool  # whether there are several logs

    def __init__(self) -> None:
        # Returns the topics that another setting declares (TASKS), each with the priorities that it has unless TOPICS
        # says otherwise.
        self.declared_elsewhere: Callable[[], Mapping[str, int]] = dict

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

    def databases_of(self, topic: str) -> tuple[str, ...]:
        """Return the aliases of the databases that a topic's keys are spread over, in order. Dead letters are where
        their topic's messages are; what is on its way to a database is on each other one."""
        own = topic.removesuffix(DEAD_LETTER_SUFFIX)
        if is_relay_topic(own):
            return tuple(alias for alias in self.aliases if relay_topic(alias) != own)
        named = self.reading.topics.get(own)
        return tuple(named.databases) if named is not None and named.databases else (self.DATABASE,)

    def stored_databases(self, topic: str) -> str:
        """Return the databases that a topic's keys are spread over, as its row holds them."""
        return "" if is_relay_topic(topic) else as_stored(self.databases_of(topic))

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

    def declares(self, topic: str) -> bool:
        """Tell whether TOPICS names a topic, or another setting declares it."""
        return topic in self.reading.topics or topic in self.declared_elsewhere()

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
