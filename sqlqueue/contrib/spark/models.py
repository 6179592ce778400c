"""The tables of the archive and of the analytics: the archive's manifest, and results by the hour, which are computed
repeatedly, and never overwritten with less than they hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.contrib.spark.manifest import MESSAGES
from sqlqueue.core.keys import GROUP_LENGTH, KEY_LENGTH
from sqlqueue.core.outcomes import LENGTH
from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.database.log import Log
from sqlqueue.models.topic import TOPIC_COLUMN

AT_ONCE = 500
Row = Mapping[str, Any]


class ArchiveSegmentQuerySet(models.QuerySet["ArchiveSegment"]):
    """Queries of the archive's manifest."""

    def of(self, topic: str, kind: str = MESSAGES) -> ArchiveSegmentQuerySet:
        """Return a topic's segments, oldest first."""
        return self.filter(topic=topic, kind=kind).order_by("first_offset")

    def frontier(self, topic: str, kind: str = MESSAGES) -> int:
        """Return the offset (of receipts: the id) up to which a topic is in the archive; 0 if nothing is."""
        lasts = self.filter(topic=topic, kind=kind).order_by("-last_offset").values_list("last_offset", flat=True)
        return lasts.first() or 0

    def ends(self, **of: str) -> list[ArchiveSegment]:
        """Return the last segment of each topic and kind (of one topic: topic=…)."""
        lasts = self.filter(**of).order_by().values("topic", "kind").annotate(last=models.Max("last_offset"))
        ends = [models.Q(topic=end["topic"], kind=end["kind"], last_offset=end["last"]) for end in lasts]
        return [segment for end in ends for segment in self.filter(end)]


class ArchiveSegment(models.Model):
    """One segment of the archive, whose files were read back and compared.

    The row and the archive group's watermarks are written in one transaction: files without a row are not part of the
    archive.
    """

    kind = ExactField(_("kind"), max_length=20)  # messages or receipts
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    first_offset = models.BigIntegerField(_("from"))  # the requested range, both ends included
    last_offset = models.BigIntegerField(_("to"))
    row_count = models.BigIntegerField(_("rows"))
    lowest = models.BigIntegerField(_("lowest"))  # the offsets (ids) found in it
    highest = models.BigIntegerField(_("highest"))
    checksum = ExactField(_("checksum"), max_length=16)
    schema_version = models.IntegerField(_("schema version"))
    path = UnicodeField(_("path"), max_length=500)
    files = models.IntegerField(_("files"))
    bytes = models.BigIntegerField(_("bytes"))
    created_at = models.DateTimeField(_("created at"), db_default=DatabaseNow())

    objects = ArchiveSegmentQuerySet.as_manager()

    class Meta:
        db_table = "sqlqueue_archive_segment"
        verbose_name = _("archive segment")
        verbose_name_plural = _("archive segments")
        constraints = [
            # Supports: no range twice; SELECT … WHERE topic, kind ORDER BY first_offset (sweep, rehydrate).
            models.UniqueConstraint(fields=["topic", "kind", "first_offset"], name="sqlqueue_archive_first"),
            # Supports: SELECT … WHERE topic, kind ORDER BY last_offset DESC LIMIT 1 (where to go on).
            models.UniqueConstraint(fields=["topic", "kind", "last_offset"], name="sqlqueue_archive_last"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} of {self.topic}, {self.first_offset}-{self.last_offset}"


class Columns(NamedTuple):
    """Which columns tell rows apart; which are counts, that never fall; which are figures that another run may no
    longer be able to compute; which say how far the row has come."""

    unique: Sequence[str]
    counts: Sequence[str]
    figures: Sequence[str] = ()
    progress: Sequence[str] = ()


def later(columns: Columns, known: Row, row: Row) -> Row:
    """Return what a row says after a new computation, as far as that knows at least as much.

    A row one of whose counts would fall stays as it is. A figure that is missing now, or, as a row's `partial` says, is
    one of a part only, stays what it was.
    """
    if any(row[count] < known[count] for count in columns.counts):
        return {**known, **{name: max(known[name], row[name]) for name in columns.progress}}
    worse = [name for name in columns.figures if row[name] is None or (row.get("partial") and known[name] is not None)]
    return {**row, **{name: known[name] for name in worse}}


class HourlyQuerySet(models.QuerySet[Any]):
    """Queries of a model whose `columns` say what identifies its rows: `hour` and `topic` are among that."""

    def store(self, rows: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
        """Insert or update rows; return how many, and how many of them held less than the stored ones, since messages
        were collected meanwhile. The stored values are kept then."""
        columns: Columns = self.model.columns
        new = {tuple(row[name] for name in columns.unique): row for row in rows}
        if not new:
            return 0, 0
        near = self.filter(
            topic__in={row["topic"] for row in new.values()},
            hour__gte=min(row["hour"] for row in new.values()),
            hour__lte=max(row["hour"] for row in new.values()),
        )
        known = {tuple(row[name] for name in columns.unique): row for row in near.values()}
        kept = {key: later(columns, known[key], row) if key in known else row for key, row in new.items()}
        fields = {field.name for field in self.model._meta.concrete_fields} - {"id"}
        targets = Log.of(self.db).connection.features.supports_update_conflicts_with_target
        self.bulk_create(
            [self.model(**{name: row[name] for name in fields if name in row}) for row in kept.values()],
            batch_size=AT_ONCE,
            update_conflicts=True,
            update_fields=sorted(fields - set(columns.unique)),
            unique_fields=list(columns.unique) if targets else None,
        )
        compared = (*columns.counts, *columns.figures)
        return len(new), sum(any(kept[key][name] != row[name] for name in compared) for key, row in new.items())


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

    objects = HourlyQuerySet.as_manager()
    columns: ClassVar = Columns(
        unique=("topic", "consumer_group", "hour"),
        counts=("published", "acked", "retried", "postponed", "dead"),
        figures=("end_to_end_p50", "end_to_end_p95", "end_to_end_p99"),
        progress=("last_offset", "last_receipt"),
    )

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


class HourlyError(models.Model):
    """One kind of error that made dead letters of a group's messages within an hour: how many, and one of their
    offsets."""

    hour = models.DateTimeField(_("hour"))
    topic = ExactField(_("topic"), max_length=TOPIC_COLUMN)
    consumer_group = ExactField(_("group"), max_length=GROUP_LENGTH)
    fingerprint = ExactField(_("error"), max_length=LENGTH)
    dead = models.BigIntegerField(_("dead"))
    example = models.BigIntegerField(_("example's offset"), null=True)

    objects = HourlyQuerySet.as_manager()
    columns: ClassVar = Columns(unique=("topic", "consumer_group", "hour", "fingerprint"), counts=("dead",))

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
