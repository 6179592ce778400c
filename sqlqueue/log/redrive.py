"""Redrive: a dead letter is delivered again, to the group that it died for, and to no other."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlqueue.conf import settings
from sqlqueue.core.codec import encode, encode_headers
from sqlqueue.core.keys import partition_of
from sqlqueue.database import faults
from sqlqueue.database.dialects import dialect, execute
from sqlqueue.database.gate import LogRow, insert_many
from sqlqueue.log.bell import ring_after_commit
from sqlqueue.log.topics import topic_info
from sqlqueue.models import Message

AT_ONCE = 100


def redrive(topic: str, *, group: str = "", offsets: Iterable[int] | None = None, limit: int | None = None) -> int:
    """Deliver dead letters of a topic again, oldest first; return how many.

    group: only those of this group (else each goes back to its own); offsets: only these dead letters (their offsets in
    the dead-letter topic); limit: at most so many. Each becomes a fresh message at the log's end, for its group alone,
    and its dead letter is removed in the same transaction: none is lost, and none comes twice. Its attempts begin anew.
    """
    alias = settings.DATABASE
    wanted = None if offsets is None else sorted(set(offsets))
    # What dies again meanwhile stands above this, and is left for another call.
    newest = Message.objects.using(alias).order_by("-offset").values_list("offset", flat=True).first() or 0
    done = 0
    while limit is None or done < limit:
        most = AT_ONCE if limit is None else min(AT_ONCE, limit - done)
        moved = faults.run(alias, _redrive, alias, topic, group, wanted, newest, most)
        if not moved:
            break
        done += moved
    return done


def discard(topic: str, *, group: str = "", offsets: Iterable[int] | None = None) -> int:
    """Delete dead letters of a topic for good; return how many. Selected as in redrive."""
    alias = settings.DATABASE
    letters = Message.objects.using(alias).dead_letters(group, topic)
    if offsets is not None:
        letters = letters.filter(offset__in=sorted(set(offsets)))
    done = 0
    while some := list(letters.order_by("offset").values_list("offset", flat=True)[:1_000]):
        done += _delete(alias, some)
    return done


def _delete(alias: str, offsets: Sequence[int]) -> int:
    """Delete these messages and touch no others, which may be those of open transactions."""
    return int(execute(alias, dialect(alias).delete("sqlqueue_message", "offset", len(offsets)), offsets).rowcount)


def _redrive(alias: str, topic: str, group: str, offsets: list[int] | None, newest: int, most: int) -> int:
    letters = Message.objects.using(alias).dead_letters(group, topic).filter(offset__lte=newest)
    if offsets is not None:
        letters = letters.filter(offset__in=offsets)
    # It waits for nobody: what is locked is another's to redrive, or was buried by a settle that has yet to commit.
    chosen = list(letters.select_for_update(skip_locked=True).order_by("offset")[:most])
    if not chosen:
        return 0
    info = topic_info(alias, topic)
    rows = [
        LogRow(
            topic,
            partition_of(letter.partition_key, info.partitions) if letter.partition_key else letter.partition,
            0,
            letter.partition_key,
            f"redrive:{letter.offset}",
            encode(letter.payload),
            encode_headers(letter.headers),
            letter.failed_group,
        )
        for letter in chosen
    ]
    insert_many(alias, rows, may_repeat=False)
    _delete(alias, [letter.offset for letter in chosen])
    ring_after_commit(alias)
    return len(chosen)
