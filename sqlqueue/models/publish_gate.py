"""The publish gate, which publishers lock while their offsets are not visible yet; duties of one process of all; and
how far relays have come."""

from __future__ import annotations

from collections.abc import Collection

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.keys import ID_LENGTH
from sqlqueue.core.settings import ALIAS_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.database.gate import DUTIES
from sqlqueue.database.insert_sql import HORIZON, NAMED, SERVER_LENGTH, SLOTS
from sqlqueue.database.log import Log
from sqlqueue.database.turning import catch_up, make_sequence, newest_layout
from sqlqueue.models.subscriber import AHEAD

THERE = "SELECT slot, generation, writer FROM sqlqueue_publish_gate"
COLLECT, SURVEY = "collect", "survey"

# One that was begun before the clock was set back is due, too. Index: the primary key.
DUE = "began_at <= {earlier} OR began_at > {later}"
DUTY_IS_DUE = f"SELECT CASE WHEN {DUE} THEN 1 ELSE 0 END FROM sqlqueue_duty WHERE name = %s"
# Does not wait for another process that begins it: of hundreds that have seen it due, one writes.
TAKE_DUTY = f"SELECT name FROM sqlqueue_duty WHERE name = %s AND ({DUE}){{skip}}"
BEGIN_DUTY = f"UPDATE sqlqueue_duty SET began_at = {{now}} WHERE name = %s AND ({DUE})"


class PublishGate(models.Model):
    """A few hundred fixed rows. Every publish on MySQL locks one in share mode until it commits; see database.horizon.
    A few more, on every database, are locked by exclusive tasks. writer: the named server of a cluster of several
    writable ones, "" if none is named; value: see database.writer, and of one row database.horizon."""

    slot = models.IntegerField(_("slot"), primary_key=True)
    generation = models.IntegerField(
        _("generation"), db_default=0, help_text=_("of the topics' layouts; who publishes by another one is refused")
    )
    writer = ExactField(_("writer"), max_length=SERVER_LENGTH + 1, db_default="")
    value = models.BigIntegerField(_("value"), db_default=0)

    class Meta:
        db_table = "sqlqueue_publish_gate"


def fill(log: Log) -> None:
    """Add missing rows: after every migrate, and after a test has flushed the tables."""
    make_sequence(log)
    catch_up(log)
    there = {slot: (generation, writer) for slot, generation, writer in log.execute(THERE).fetchall()}
    generation = max([generation for slot, (generation, _) in there.items() if slot >= 0], default=None)
    writer = max([writer for _, writer in there.values()], default="")
    if generation is None:
        generation = newest_layout(log)
    missing = set(range(SLOTS)).difference(there)
    _insert(log, missing, generation, writer)
    _insert(log, {*DUTIES, HORIZON}.difference(there), 0)
    _insert(log, {NAMED}.difference(there), 0, writer)


def _insert(log: Log, missing: Collection[int], generation: int, writer: str = "") -> None:
    if missing:
        rows = [PublishGate(slot=slot, generation=generation, writer=writer) for slot in sorted(missing)]
        PublishGate.objects.using(log.alias).bulk_create(rows, ignore_conflicts=True)


class Duty(models.Model):
    """A row for each such duty: see begin_duty."""

    name = ExactField(_("name"), max_length=30, primary_key=True)
    began_at = models.DateTimeField(_("began at"))

    class Meta:
        db_table = "sqlqueue_duty"


class RelayPosition(models.Model):
    """The last message that has come here from a partition of another database's relay topic: its offset and id there.
    It only rises, in the transaction that adds what has come; so each message is added once."""

    source = ExactField(_("source"), max_length=ALIAS_LENGTH)
    partition = models.IntegerField(_("partition"))
    offset = models.BigIntegerField(_("offset"))
    message_id = ExactField(_("id"), max_length=ID_LENGTH)

    class Meta:
        db_table = "sqlqueue_relay_position"
        constraints = [
            # Supports: SELECT …, UPDATE … WHERE source and partition (what has arrived).
            models.UniqueConstraint(fields=["source", "partition"], name="sqlqueue_relay_position_of"),
        ]


def begin_duty(log: Log, name: str, rest: float) -> bool:
    """Tell whether this process is to do a duty now: none has begun it in the last `rest` seconds. Then it counts as
    begun.

    One statement for every process that need not. A process that is killed at it leaves it to the next one that asks
    after that time.
    """
    times = (round(rest * 1_000_000), round(AHEAD.total_seconds() * 1_000_000))
    row = log.execute(DUTY_IS_DUE, (*times, name)).fetchone()
    if row is None:
        return bool(
            log.insert_missing("sqlqueue_duty (name, began_at)", "(%s, {now})", {name: (name,)}, "name", "name")
        )
    if not row[0]:
        return False
    with log.atomic():
        taken = log.execute(TAKE_DUTY, (name, *times)).fetchone()
        return taken is not None and bool(log.execute(BEGIN_DUTY, (name, *times)).rowcount)
