"""What lists show of messages besides their columns: the beginning of the payload, and the status in every group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import models
from django.db.models.functions import Cast, Left
from django.utils.text import Truncator
from django.utils.translation import gettext as _

from sqlqueue.admin.bodies import described
from sqlqueue.admin.readable import harmless
from sqlqueue.core.outcomes import REPLAYED
from sqlqueue.database.log import Log
from sqlqueue.log.encoding import NOTHING
from sqlqueue.models import Message, Receipt
from sqlqueue.stats.bodies import bodies
from sqlqueue.stats.group_status import statuses_of

BEGINNING = 100  # characters of a payload
MOST_RECEIPTS_READ = 2_000  # for a page of messages


def show_previews(model: type[models.Model], rows: Sequence[Any]) -> None:
    """Set `preview` of rows: the beginning of the payload as the database has it; of bytes, their type and size. One
    statement, and another one if there may be bytes, on the database that the rows were read from."""
    if not rows:
        return
    log = Log.of(rows[0]._state.db)
    texts = model._default_manager.using(log.alias).filter(pk__in=[row.pk for row in rows])
    beginning = Left(Cast("payload", models.TextField()), BEGINNING + 1)
    found = dict(texts.annotate(beginning=beginning).values_list("pk", "beginning"))
    bytes_of = bodies(log, model, empty) if (empty := [key for key, text in found.items() if text == NOTHING]) else {}
    for row in rows:
        shown = described(bytes_of[row.pk]) if row.pk in bytes_of else found.get(row.pk)
        row.preview = harmless(Truncator(shown or "").chars(BEGINNING))


def show_outcomes(rows: Sequence[Message]) -> None:
    """Set `outcomes` of messages: the status in each group of the topic, and the seconds of the last delivery as a
    text, if there is a receipt."""
    if not rows:
        return
    log = Log.of(str(rows[0]._state.db))
    found, seconds = statuses_of(log, rows), _seconds(log, [row.offset for row in rows])
    for row in rows:
        row.outcomes = [(one, _text(seconds.get((row.offset, one.group)))) for one in found[row.offset]]  # type: ignore[attr-defined]


def _seconds(log: Log, offsets: Sequence[int]) -> dict[tuple[int, str], float]:
    """Return the seconds of the last delivery of each message to each group.

    Index: (message_offset, consumer_group).
    """
    receipts = Receipt.objects.using(log.alias).filter(message_offset__in=offsets).exclude(outcome=REPLAYED)
    columns = ("message_offset", "consumer_group", "started_at", "finished_at")
    newest = receipts.order_by("-id").values_list(*columns)[:MOST_RECEIPTS_READ]
    return {
        (offset, group): (finished - started).total_seconds() for offset, group, started, finished in reversed(newest)
    }


def _text(seconds: float | None) -> str:
    return "" if seconds is None else _("%(seconds).3f s") % {"seconds": seconds}
