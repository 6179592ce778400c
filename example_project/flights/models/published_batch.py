"""The rows of the file that have been published."""

from __future__ import annotations

from django.db import models


class PublishedBatchQuerySet(models.QuerySet["PublishedBatch"]):
    """Queries of published batches."""

    def published_rows(self) -> int:
        """Return how many rows of the file have been published, counted from its start."""
        return self.aggregate(rows=models.Max("stop"))["rows"] or 0


class PublishedBatch(models.Model):
    """The rows from `start` (included) to `stop` (excluded) of the file, committed together with their messages."""

    start = models.PositiveIntegerField(
        unique=True, help_text="Unique, so that two publishers cannot publish the same rows."
    )
    stop = models.PositiveIntegerField()
    published_at = models.DateTimeField(auto_now_add=True)

    objects = PublishedBatchQuerySet.as_manager()

    class Meta:
        verbose_name_plural = "published batches"

    def __str__(self) -> str:
        return f"rows {self.start:,} to {self.stop:,}"
