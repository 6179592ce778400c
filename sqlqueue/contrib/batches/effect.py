"""Batches as an effect of messages with their header.

A member that adds others commits them before its own outcome, or with it, and a check is one statement outside of any
transaction: so it never sees the member settled and what that has added missing. Two processes that settle the last two
members both check: the check behind the later commit sees both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlqueue.contrib.batches import collect, ends, members
from sqlqueue.core.effects import Effect, EffectWrite
from sqlqueue.database.log import Log, home_log


class Members(Effect):
    """Follows the members of batches: they are on DATABASE."""

    header = members.HEADER

    def settle(self, log: Log, writes: Sequence[EffectWrite]) -> None:
        """Store how groups have settled them."""
        members.settle(log, writes)

    def committed(self, log: Log, writes: Sequence[EffectWrite]) -> bool:
        """End the batches that they were the last members of; without any, those that have come to their end by
        themselves."""
        if log != home_log():
            return False
        found = {member.batch for each in writes if (member := members.member_of(each.headers)) is not None}
        if found:
            ends.check(log, found)
        return bool(found) or ends.sweep(log)

    def withdrawn(self, log: Log, topic: str, group: str, messages: Iterable[Any] | None) -> int:
        """Count them as settled. What a topic has when it is dropped was withdrawn before."""
        if messages is not None and members.are_in(log, topic) and (found := members.withdraw(log, group, messages)):
            log.on_commit(lambda: ends.check_quietly(log, found))
        return 0

    def returned(self, log: Log, topic: str, group: str, headers: Iterable[Any]) -> None:
        """Wait for them again."""
        if members.are_in(log, topic):
            members.give_back(log, group, headers)

    def group_removed(self, log: Log, topic: str, group: str) -> None:
        """Wait for it no more."""
        members.forget_group(log, topic, group)

    def sweep(self, log: Log) -> bool:
        """Delete batches that have ended SQLQUEUE_BATCHES["RETENTION"] ago."""
        return log == home_log() and collect.collect(log) >= collect.MOST_AT_ONCE


MEMBERS = Members()
