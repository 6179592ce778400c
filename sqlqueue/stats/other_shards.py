"""Asks other shards for what a survey of one shows. An error of theirs fails nothing: what they know is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from django.db import Error

from sqlqueue.database import retries

T = TypeVar("T")

SILENT: Final = "silent"
FAILED: Final = "failed"


class NotKnown(NamedTuple):
    """Why it is not known what a shard knows: it is "silent", or it "failed", with the first line of its error."""

    why: str
    error: str = ""


class OtherShards:
    """Asks the shards for one survey. Not thread-safe.

    own: the alias of the database that is surveyed, whose errors are raised. Another one that has answered with an
    error is not asked again.
    """

    def __init__(self, own: str):
        self._own = own
        self._not_known: dict[str, NotKnown] = {}

    def ask(self, alias: str, look: Callable[..., T], *args: Any) -> T | NotKnown:
        """Return what `look` finds on a shard, or why that is not known."""
        if alias == self._own:
            return look(*args)
        if alias not in self._not_known:
            try:
                return look(*args)
            except Error as error:
                self._not_known[alias] = _why(alias, error)
        return self._not_known[alias]


def _why(alias: str, error: Error) -> NotKnown:
    if retries.classify(error) is retries.ErrorKind.GONE:
        retries.drop_connection(alias)
        return NotKnown(SILENT)
    return NotKnown(FAILED, str(error).strip().partition("\n")[0])
