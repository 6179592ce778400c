"""The archive's manifest."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from sqlqueue.database.fields import DatabaseNow, ExactField, UnicodeField
from sqlqueue.models.topic import TOPIC_COLUMN

MESSAGES, RECEIPTS = "messages", "receipts"


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
