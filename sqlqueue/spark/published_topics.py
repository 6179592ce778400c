"""The topics that a writing task publishes to, and its connections to their shards. Executors import this module, which
needs no Django."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from typing import NamedTuple

from sqlqueue.core.keys import DEAD_LETTER_SUFFIX, checked_topic
from sqlqueue.core.shards import Spread, as_stored, shard_of, spread_from
from sqlqueue.database.dbapi import Access, Connection
from sqlqueue.database.dialects import DIALECTS
from sqlqueue.database.validation import (
    CREATE_PLACED_TOPIC,
    CREATE_TOPIC,
    STORED_TOPIC,
    TopicInfo,
    refuse_dead_letters,
    undeclared,
)
from sqlqueue.exceptions import ConfigurationError, InvalidMessage
from sqlqueue.spark.topics import Topics


class PlacedTopic(NamedTuple):
    """A topic, and the shards that its messages are on; () without SHARDS."""

    info: TopicInfo
    shards: tuple[str, ...]
    spread: Spread = Spread()


class ShardConnections:
    """A task's connections, each opened at its first use; "" is the one database of a project without SHARDS."""

    def __init__(self, accesses: Mapping[str, Access]):
        self.accesses = accesses
        self.vendor = next(iter(accesses.values())).vendor  # all shards have the same
        self._open: dict[str, Connection] = {}
        self._closing = ExitStack()

    def __enter__(self) -> ShardConnections:
        return self

    def __exit__(self, *raised: object) -> None:
        self._closing.close()

    def to(self, shard: str) -> Connection:
        """Return the connection to a shard."""
        if shard not in self._open:
            self._open[shard] = self._closing.enter_context(Connection(self.accesses[shard]))
        return self._open[shard]


class PublishedTopics:
    """The topics of one task, as they are stored; those that are declared and do not exist yet are created."""

    def __init__(self, shards: ShardConnections, topics: Topics):
        self._shards, self._topics = shards, topics
        self._ignore = DIALECTS[shards.vendor].ignore("name")
        self._known: dict[str, PlacedTopic] = {}
        self._there: set[tuple[str, str]] = set()  # (shard, topic): it has the topic's row

    def placed(self, name: str | None) -> PlacedTopic:
        """Return a topic and its shards. Raises InvalidMessage without a name, and ConfigurationError for a topic that
        is not declared, or is on a shard that there is not."""
        if name is None:
            raise InvalidMessage("a row has no topic: fill the column topic, or set the option topic")
        if name not in self._known:
            checked_topic(name)
            refuse_dead_letters(name)
            self._known[name] = self._stored(self._topics.home, name) or self._created(name)
        return self._known[name]

    def shard(self, placed: PlacedTopic, key: str, id: str | None) -> str:
        """Return the shard of a message by its key, or its id, see sqlqueue.core.shards; it has the topic from then
        on."""
        if not placed.shards:
            return ""
        shard = shard_of(key or id or "", placed.shards) if key or id else random.choice(placed.shards)
        if id and {shard_of(key or id, each) for each in placed.spread.all_lists} - {shard}:
            raise InvalidMessage(
                f"topic {placed.info.name!r} was spread over other shards, and key {key!r} has moved: whether its"
                " former shard has the id is not looked for here. Write it without an id, or with publish"
            )
        if (shard, placed.info.name) not in self._there:
            self._repeat(shard, placed)
            self._there.add((shard, placed.info.name))
        return shard

    def _created(self, name: str) -> PlacedTopic:
        if not self._topics.may_create(name):
            raise undeclared(name, {*self._topics.named, *self._names()})
        home = self._shards.to(self._topics.home)
        values = self._topics.values(name)
        if self._topics.home:
            values = (*values, as_stored(self._topics.shards_of(name)))
        text = CREATE_PLACED_TOPIC if self._topics.home else CREATE_TOPIC
        home.again(home.execute, text + self._ignore, values)
        found = self._stored(self._topics.home, name)
        assert found is not None
        return found

    def _repeat(self, shard: str, placed: PlacedTopic) -> None:
        """Give a shard the row that DATABASE's has."""
        if shard == self._topics.home or self._stored(shard, placed.info.name) is not None:
            return
        _, _, _, *rest = self._topics.values(placed.info.name)
        values = (*placed.info[:3], *rest, placed.spread.stored() or as_stored(placed.shards))
        connection = self._shards.to(shard)
        connection.again(connection.execute, CREATE_PLACED_TOPIC + self._ignore, values)

    def _names(self) -> list[str]:
        rows = self._shards.to(self._topics.home).execute("SELECT name FROM sqlqueue_topic", ()).fetchall()
        return [name for (name,) in rows if not name.endswith(DEAD_LETTER_SUFFIX)]

    def _stored(self, shard: str, name: str) -> PlacedTopic | None:
        found = self._shards.to(shard).execute(STORED_TOPIC, (name,)).fetchone()
        if found is None:
            return None
        *fixed, stored = found
        spread = spread_from(stored)
        shards = (spread.present or (self._topics.home,)) if self._topics.home else ()
        if missing := [each for each in shards if each not in self._shards.accesses]:
            raise ConfigurationError(
                f"topic {name!r} has messages on shard {missing[0]!r}, which SQLQUEUE['SHARDS'] does not have: name it "
                "there"
            )
        return PlacedTopic(TopicInfo(*fixed), shards, spread)
