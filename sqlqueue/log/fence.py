"""The fence: a statement that an owner runs on its offset row changes nothing once another process is the owner.

Such a statement has {fence} in its WHERE and is run by this module; no other module compares a fencing token with a
parameter. Another proof of ownership is added in this module: its condition to PREDICATE, its parameter to owned(), its
value to Owner.
"""

from __future__ import annotations

from typing import Any, Protocol

from sqlqueue.database.statements import execute

# Its parameters are owned(). Index: the primary key.
PREDICATE = "id = %s AND fencing_token = %s"
# A settle's position, watermark and claim. Values, never lowered: an atomic batch may have moved the position itself.
ADVANCE = """
    UPDATE sqlqueue_offset SET position = {greatest}(position, %s), offset_acked = {greatest}(offset_acked, %s),
    claimed_to = {greatest}(claimed_to, %s), updated_at = {now} WHERE {fence}
"""
# A locking read sees the newest row, not that of the snapshot which the transaction's first query may have opened.
LOCK = "SELECT position, {begun} FROM sqlqueue_offset WHERE {fence}{update}"
LOCK_SHARED = "SELECT position, {begun} FROM sqlqueue_offset WHERE {fence}{share}"


class Owner(Protocol):
    """The owner of an assigned partition: the id of the offset row, and the fencing token of the acquisition."""

    @property
    def id(self) -> int: ...
    @property
    def token(self) -> int: ...


def owned(owner: Owner) -> tuple[object, ...]:
    """Return the parameters of {fence}."""
    return owner.id, owner.token


def advance(alias: str, owner: Owner, position: int, watermark: int, claimed: int) -> bool:
    """Move the stored position, watermark and claim up to these offsets; False if the token is stale."""
    return update(alias, ADVANCE, (position, watermark, claimed), owner)


def update(alias: str, text: str, values: tuple[object, ...], owner: Owner) -> bool:
    """Run an UPDATE of the owner's offset row that ends with {fence}; False if the token is stale: nothing changed.

    values: the parameters before those of the fence.
    """
    return bool(_execute(alias, text, (*values, *owned(owner))).rowcount == 1)


def lock(alias: str, owner: Owner, *, shared: bool = False) -> tuple[int, Any] | None:
    """Lock the owner's offset row until the transaction ends; return the stored position, and when the transaction
    began (None where no guard uses it). None if the token is stale: nothing is locked.

    Settles of the owner and changes of owner wait for this transaction; those that hold it shared do not wait for each
    other.
    """
    found: tuple[int, Any] | None = _execute(alias, LOCK_SHARED if shared else LOCK, owned(owner)).fetchone()
    return found


def _execute(alias: str, text: str, values: tuple[object, ...]) -> Any:
    return execute(alias, text.replace("{fence}", PREDICATE), values)
