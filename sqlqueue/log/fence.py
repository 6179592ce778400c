"""The fence: a statement that an owner runs on its offset row changes nothing once another process is the owner, nor on
another server than the one on which the owner has acquired it.

Such a statement has {fence} in its WHERE and is run by this module; no other module compares a fencing token with a
parameter. Another proof of ownership is added in this module: its condition and its parameter to owned(), its value to
Owner.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from sqlqueue.database.log import Log
from sqlqueue.database.server_identity import ServerIdentity, proof_condition
from sqlqueue.database.sizes import chunks

# With the server's identity behind it, see owned(). Index: the primary key.
PREDICATE = "id = %s AND fencing_token = %s"
AT_ONCE = 100  # partitions that one statement moves
# A settle's position, watermark and claim. Values, never lowered: an atomic batch may have moved the position itself.
ADVANCE = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), offset_acked = {greatest}(offset_acked, %s),
    claimed_to = {greatest}(claimed_to, %s), updated_at = {now} WHERE {fence}
"""
# The same of several partitions, each behind its own fence. Index: the primary key.
MOVED = ("partition_id", "token", "reached", "watermark", "claimed")
MOVE = (
    "position = {greatest}(position, reached), offset_acked = {greatest}(offset_acked, watermark),"
    " claimed_to = {greatest}(claimed_to, claimed), updated_at = {now}"
)
PREDICATE_OF_EACH = "fencing_token = token"
# A locking read sees the newest row, not that of the snapshot which the transaction's first query may have opened.
LOCK = "SELECT position, {begun} FROM sqlqueue_offset WHERE {fence}{update}"
LOCK_SHARED = "SELECT position, {begun} FROM sqlqueue_offset WHERE {fence}{share}"


class Owner(Protocol):
    """The owner of an assigned partition: the id of the offset row, the fencing token of the acquisition, and the
    server on which it was acquired. Another server may know the same token."""

    @property
    def id(self) -> int: ...
    @property
    def token(self) -> int: ...
    @property
    def server(self) -> ServerIdentity | None: ...


class Move(NamedTuple):
    """The offsets up to which an owner moves the stored position, watermark and claim."""

    owner: Owner
    position: int
    watermark: int
    claimed: int


def owned(owner: Owner) -> tuple[str, tuple[object, ...]]:
    """Return {fence} and its parameters. Raises ServerChanged if the connection is known to lead to another server."""
    proof, values = proof_condition(owner.server)
    return PREDICATE + proof, (owner.id, owner.token, *values)


def advance(log: Log, owner: Owner, position: int, watermark: int, claimed: int) -> bool:
    """Move the stored position, watermark and claim up to these offsets; False if the token is stale."""
    return update(log, ADVANCE, (position, watermark, claimed), owner)


def advance_all(log: Log, moves: Sequence[Move]) -> list[bool]:
    """Do advance() for several partitions; return what it says of each. One statement for as many as the server takes,
    and one more for each partition only if one of them has not moved. Rows are locked in the order of the moves."""
    moved: list[bool] = []
    for some in chunks(log, moves, AT_ONCE, size_of=lambda move: 0.0):
        together = len(some) > 1 and len({move.owner.server for move in some}) == 1 and _advance_together(log, some)
        moved += [True] * len(some) if together else [advance(log, *move) for move in some]
    return moved


def _advance_together(log: Log, moves: Sequence[Move]) -> bool:
    """Move several partitions of one server; False if it is not known that all have moved."""
    proof, proven = proof_condition(moves[0].owner.server)
    text = log.dialect.update("sqlqueue_offset", MOVED, len(moves), MOVE, PREDICATE_OF_EACH + proof)
    values = [value for owner, *offsets in moves for value in (owner.id, owner.token, *offsets)]
    return bool(log.execute(text, (*values, *proven)).rowcount == len(moves))


def update(log: Log, text: str, values: tuple[object, ...], owner: Owner) -> bool:
    """Run an UPDATE of the owner's offset row that ends with {fence}; False if the token is stale: nothing changed.

    values: the parameters before those of the fence. Raises ServerChanged or SessionReplaced if another server has run
    it, or may have: then nothing has changed either.
    """
    if _execute(log, text, values, owner).rowcount == 1:
        return True
    _confirm(owner)
    return False


def lock(log: Log, owner: Owner, *, shared: bool = False) -> tuple[int, Any] | None:
    """Lock the owner's offset row until the transaction ends; return the stored position, and when the transaction
    began (None where no guard uses it). None if the token is stale: nothing is locked.

    Settles of the owner and changes of owner wait for this transaction; those that hold it shared do not wait for each
    other. Raises as update().
    """
    found: tuple[int, Any] | None = _execute(log, LOCK_SHARED if shared else LOCK, (), owner).fetchone()
    if found is None:
        _confirm(owner)
    return found


def _execute(log: Log, text: str, values: tuple[object, ...], owner: Owner) -> Any:
    predicate, its = owned(owner)
    return log.execute(text.replace("{fence}", predicate), (*values, *its))


def _confirm(owner: Owner) -> None:
    """Nothing matched: raise if the server is why, and not the token."""
    if owner.server is not None:
        owner.server.confirm()
