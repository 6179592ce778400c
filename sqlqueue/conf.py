"""The `SQLQUEUE` setting as attributes: read lazily, and again when a test overrides it. sqlqueue.core.setting says
what it may say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from django.conf import settings as django_settings
from django.core.signals import setting_changed
from django.db import connections

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX
from sqlqueue.core.periodic import PERIODIC_TOPIC, ScheduleDefinition
from sqlqueue.core.setting.health import HealthLimits
from sqlqueue.core.setting.queue import ParsedSetting, QueueOptions, read
from sqlqueue.core.setting.topics import TopicOptions
from sqlqueue.exceptions import ConfigurationError


class Settings:
    """The validated settings as attributes: `settings.LEASE_DURATION`. Reading one raises ConfigurationError if any is
    wrong."""

    def __init__(self) -> None:
        # Returns the topics that another setting declares (TASKS), each with the priorities that it has unless TOPICS
        # says otherwise.
        self.declared_elsewhere: Callable[[], Mapping[str, int]] = dict

    @cached_property
    def _read(self) -> ParsedSetting:
        if problems := self.problems():
            raise ConfigurationError("; ".join(problems))
        return read(getattr(django_settings, "SQLQUEUE", {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in QueueOptions.__dataclass_fields__:
            raise AttributeError(name)
        return getattr(self._read.options, name)

    def topic(self, name: str) -> TopicOptions:
        """Return the options of a topic, whether TOPICS names it or not."""
        options, named = self._read.options, self._read.topics.get(name)
        if named is not None and "priorities" in options.TOPICS[name]:
            return named
        priorities = self.declared_elsewhere().get(name, 1)
        if named is not None:
            return named if priorities == 1 else replace(named, priorities=priorities)
        partitions = 1 if name == PERIODIC_TOPIC else options.PARTITIONS
        return TopicOptions(partitions, priorities, options.RETENTION, options.HISTORY)

    def worked(self, name: str) -> TopicOptions:
        """Return the options that hold for what people do with a topic's messages: a dead-letter topic that TOPICS does
        not name has those of its topic."""
        return self.topic(name if self.names(name) else name.removesuffix(DEAD_LETTER_SUFFIX))

    def names(self, topic: str) -> bool:
        """Tell whether TOPICS names a topic."""
        return topic in self._read.topics

    def named_topics(self) -> dict[str, TopicOptions]:
        """Return the options of the topics that TOPICS names."""
        return self._read.topics

    def schedules(self) -> dict[str, ScheduleDefinition]:
        """Return the periodic schedules of SCHEDULES by name."""
        return self._read.schedules

    def declares(self, topic: str) -> bool:
        """Tell whether TOPICS names a topic, or another setting declares it."""
        return topic in self._read.topics or topic in self.declared_elsewhere()

    def health_limits(self, topic: str) -> HealthLimits:
        """Return the health limits of this topic's groups."""
        named = self._read.limits
        return named.get(topic) or named[""]

    def problems(self) -> list[str]:
        """Return everything that is wrong with the setting, for the system checks."""
        reading = read(getattr(django_settings, "SQLQUEUE", {}))
        alias = reading.options.DATABASE
        if not reading.problems and alias not in connections:
            known = ", ".join(connections)
            return [f"DATABASE names the alias {alias!r}, which DATABASES does not have; it has: {known}"]
        return reading.problems

    def given_alias(self) -> str:
        """Return the alias that the setting names, whatever else is wrong with it; the default if it names none."""
        alias = read(getattr(django_settings, "SQLQUEUE", {})).options.DATABASE
        return alias if isinstance(alias, str) else QueueOptions.DATABASE

    def forget(self) -> None:
        """Read the setting again at its next use."""
        self.__dict__.pop("_read", None)


settings = Settings()


def _changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "SQLQUEUE":
        settings.forget()


setting_changed.connect(_changed, dispatch_uid="sqlqueue.conf")
