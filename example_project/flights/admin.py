"""The example's own tables in the admin."""

from __future__ import annotations

from django.contrib import admin

from example_project.flights.models import Aircraft, Alert, DelayStatistic, FreeSeats, PublishedBatch


@admin.register(Aircraft)
class AircraftAdmin(admin.ModelAdmin):
    """Aircraft and how often they flew."""

    list_display = ["tail_number", "legs", "last_flight"]
    search_fields = ["tail_number"]
    ordering = ["tail_number"]


@admin.register(DelayStatistic)
class DelayStatisticAdmin(admin.ModelAdmin):
    """Delays by airport and carrier."""

    list_display = ["origin", "carrier", "flights", "departed", "cancelled", "mean_minutes", "max_delay"]
    list_filter = ["origin", "carrier"]
    ordering = ["origin", "carrier"]

    @admin.display(description="mean delay")
    def mean_minutes(self, statistic: DelayStatistic) -> str:
        """Return the mean delay, or a dash if no flight has departed."""
        mean = statistic.mean_delay
        return "–" if mean is None else f"{mean:.1f}"


@admin.register(Alert)
class AlertAdmin(admin.ModelAdmin):
    """Flights that departed late."""

    list_display = ["flight", "delay", "reason", "created_at"]
    search_fields = ["flight"]
    ordering = ["-delay"]


@admin.register(PublishedBatch)
class PublishedBatchAdmin(admin.ModelAdmin):
    """The rows of the file that have been published."""

    list_display = ["start", "stop", "published_at"]
    ordering = ["-start"]


@admin.register(FreeSeats)
class FreeSeatsAdmin(admin.ModelAdmin):
    """Flights with the seats that can still be reserved."""

    list_display = ["flight", "free"]
    ordering = ["flight"]
