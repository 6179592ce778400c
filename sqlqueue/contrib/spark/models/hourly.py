"""Results of the analytics, by the hour: computed repeatedly, and never overwritten with less than they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from django.db import models
from django.db.models import Max
from django.utils.translation import gettext_lazy as _

from sqlqueue.core.error_text import LENGTH
from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.database.fields import ExactField
from sqlqueue.database.log import Log
from sqlqueue.models.topic import TOPIC_COLUMN

AT_ONCE = 500
Row = Mapping[str, Any]


class Columns(NamedTuple):
    """Which columns tell rows apart; which are counts, that never fall; which are figures that another run may no
    longer be able to compute; which say how far the row has come."""

    unique: Sequence[str]
    counts: Sequence[str]
    figures: Sequence[str] = ()
    progress: Sequence[str] = ()


def merged(columns: Columns, old: Iterable[Row], new: Iterable[Row]) -> tuple[list[dict[str, Any]], int]:
    """Return the old rows, replaced by the new ones as far as these know at least as much, and the new ones that there
    were not; and how many of the new ones knew less.

    A row one of whose counts would fall stays as it is. A figure that is missing now, or, as a row's `partial` says, is
    one of a part only, stays what it was.
    """
    rows = {_key(columns, row): dict(row) for row in old}
    less = 0
    for row in new:
        key = _key(columns, row)
        known = rows.get(key)
        rows[key] = dict(row) if known is None else _later(columns, known, row)
        less += known is not None and any(rows[key][name] != row[name] for name in (*columns.counts, *columns.figures))
    return list(rows.values()), less


def _later(columns: Columns, known: Row, row: Row) -> dict[str, Any]:
    if any(row[count] < known[count] for count in columns.counts):
        return {**known, **{name: max(known[name], row[name]) for name in columns.progress}}
    worse = [name for name in columns.figures if row[name] is None or (row.get("partial") and known[name] is not None)]
    return {**row, **{name: known[name] for name in worse}}


def _key(columns: Columns, row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in columns.unique)


class HourlyQuerySet(models.QuerySet[Any]):
    """Queries of a model whose rows are identified by unique columns, `hour` and `topic` among them."""

    columns: ClassVar[Columns]

    def store(self, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
        """Insert or update rows; return how many, and how many of them held less than the stored ones, since messages
        were collected meanwhile. The stored values are kept then."""
        new = {tuple(row[name] for name in self.columns.unique): row for row in rows}
        known, less = merged(self.columns, self._near(new.values()), new.values())
        fields = {field.name for field in self.model._meta.concrete_fields} - {"id"}
        written = [row for row in known if tuple(row[name] for name in self.columns.unique) in new]
        targets = Log.of(self.db).connection.features.supports_update_conflicts_with_target
        self.bulk_create(
            [self.model(**{name: row[name] for name in fields if name in row}) for row in written],
            batch_size=AT_ONCE,
            update_conflicts=True,
            update_fields=sorted(fields - set(self.columns.unique)),
            unique_fields=list(self.columns.unique) if targets else None,
        )
        return len(new), less

    def _near(self, new: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the stored rows of the new ones' topics between their first and last hour."""
        rows = list(new)
        if not rows:
            return []
        hours = [row["hour"] for row in rows]
        near = self.filter(topic__in={row["topic"] for row in rows}, hour__range=(min(hours), max(hours)))
        return [{name: value for name, value in row.items() if name != "id"} for row in near.values()]


class HourlyStatisticQuerySet(HourlyQuerySet):
    """Queries of the statistics."""

    columns = Columns(
        unique=("topic", "consumer_group", "hour"),
        counts=("published", "acked", "retried", "postponed", "dead"),
        figures=("end_to_end_p50", "end_to_end_p95", "end_to_end_p99"),
        progress=("last_offset", "last_receipt"),
    )

    def reached(self, topic: str) -> tuple[int, datetime | None]:
        """Return the offset of the last message in a topic's rows, and their last hour."""
        found = self.filter(topic=topic).aggregate(offset=Max("last_offset"), hour=Max("hour"))
        return found["offset"] or 0, found["hour"]


class HourlyStatistic(models.Model):
    """An hour of a topic: messages published (`consumer_group` is empty), or their outcomes in a group. Times are in
    seconds."""

    hour = models.DateTimeField(_("hour"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH, db_default="")
    published = models.BigIntegerField(_("published"), db_default=0)
    key_count = models.BigIntegerField(_("keys"), db_default=0)
    top_key = ExactField(_("busiest key"), max_length=KEY_LENGTH, db_default="")
    top_key_messages = models.BigIntegerField(_("messages of the busiest key"), db_default=0)
    acked = models.BigIntegerField(_("acked"), db_default=0)
    retried = models.BigIntegerField(_("retried"), db_default=0)
    postponed = models.BigIntegerField(_("postponed"), db_default=0)
    dead = models.BigIntegerField(_("dead"), db_default=0)
    redelivered = models.BigIntegerField(_("redelivered"), db_default=0)
    handler_p50 = models.FloatField(_("handler, median"), null=True)
    handler_p95 = models.FloatField(_("handler, 95 %"), null=True)
    handler_p99 = models.FloatField(_("handler, 99 %"), null=True)
    end_to_end_p50 = models.FloatField(_("end to end, median"), null=True)
    end_to_end_p95 = models.FloatField(_("end to end, 95 %"), null=True)
    end_to_end_p99 = models.FloatField(_("end to end, 99 %"), null=True)
    last_offset = models.BigIntegerField(_("last offset"), db_default=0)
    last_receipt = models.BigIntegerField(_("last receipt"), db_default=0)

    objects = HourlyStatisticQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_hourly_statistic"
        verbose_name = _("hourly statistic")
        verbose_name_plural = _("hourly statistics")
        constraints = [
            # Supports: the upsert; SELECT … WHERE topic [AND consumer_group [AND hour]] (charts, where to go on).
            models.UniqueConstraint(fields=["topic", "consumer_group", "hour"], name="sqlqueue_hourly_statistic_hour"),
        ]

    def __str__(self) -> str:
        return f"{self.topic} {self.consumer_group} {self.hour:%Y-%m-%d %H}:00"


class HourlyErrorQuerySet(HourlyQuerySet):
    """Queries of the errors."""

    columns = Columns(unique=("topic", "consumer_group", "hour", "fingerprint"), counts=("dead",))


class HourlyError(models.Model):
    """One kind of error that made dead letters of a group's messages within an hour: how many, and one of their
    offsets."""

    hour = models.DateTimeField(_("hour"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    fingerprint = ExactField(_("error"), max_length=LENGTH)
    dead = models.BigIntegerField(_("dead"))
    example = models.BigIntegerField(_("example's offset"), null=True)

    objects = HourlyErrorQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_hourly_error"
        verbose_name = _("hourly error")
        verbose_name_plural = _("hourly errors")
        constraints = [
            # Supports: the upsert; SELECT … WHERE topic [AND consumer_group [AND hour]] (charts).
            models.UniqueConstraint(
                fields=["topic", "consumer_group", "hour", "fingerprint"], name="sqlqueue_hourly_error_kind"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.fingerprint} of {self.consumer_group}, {self.hour:%Y-%m-%d %H}:00"
