"""SHARDS: the databases that share the log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlqueue.core.keys import did_you_mean

MOST_SHARDS = 64
SHARD_LENGTH = 30
SHARD_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{SHARD_LENGTH - 1}}}")


def shards(given: Any, database: object, problems: list[str]) -> dict[str, str]:
    """Return the aliases of the shards by their names; none without SHARDS. database: of DATABASE, which is one."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not given:
        problems.append(f"SHARDS must be a dict of names to {{'alias': …}}, with one shard at least, not {given!r}")
        return {}
    found: dict[str, str] = {}
    for name, options in given.items():
        if not isinstance(name, str) or not SHARD_NAME.fullmatch(name):
            problems.append(
                f"SHARDS: {name!r} is not a name: use up to {SHARD_LENGTH} lower-case letters, digits, _ and -, "
                "and begin with a letter or digit"
            )
            continue
        alias = options.get("alias") if isinstance(options, Mapping) else None
        if not isinstance(alias, str) or not alias:
            problems.append(f"SHARDS[{name!r}] must be {{'alias': 'an alias of DATABASES'}}, not {options!r}")
            continue
        if unknown := [option for option in options if option != "alias"]:
            problems.append(f"SHARDS[{name!r}] has no option {unknown[0]!r}.{did_you_mean(str(unknown[0]), ['alias'])}")
        if other := next((each for each, of_other in found.items() if of_other == alias), None):
            problems.append(f"SHARDS: {other!r} and {name!r} both have the alias {alias!r}: each needs its own")
        found[name] = alias
    if len(given) > MOST_SHARDS:
        problems.append(f"SHARDS has {len(given)} shards; {MOST_SHARDS} are the most")
    if found and database not in found.values():
        problems.append(
            f"DATABASE is {database!r}, and no shard of SHARDS has that alias: name the one that the existing topics "
            "are on"
        )
    return found


def topic_shards(topic: object, given: Any, known: Mapping[str, str], problems: list[str]) -> tuple[str, ...]:
    """Return the shards that a topic names, in order; () for all of them."""
    name = f"TOPICS[{topic!r}]['shards']"
    if given is None:
        return ()
    if not isinstance(given, (list, tuple)) or not given:
        problems.append(f"{name} must be a list of names of SHARDS, not {given!r}")
        return ()
    for one in given:
        if one not in known:
            hint = did_you_mean(str(one), known) or " There are no SHARDS."
            problems.append(f"{name} names {one!r}, which SHARDS does not have.{hint}")
    if len(set(map(str, given))) != len(given):
        problems.append(f"{name} names a shard twice: {given!r}")
    return tuple(sorted(map(str, given)))
