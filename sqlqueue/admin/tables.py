"""The tables that the other pages are made from, as lists to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html_join
from django.utils.text import Truncator
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import harmless
from sqlqueue.admin.lists import KeysetAdmin, section_of
from sqlqueue.core.settle_plan import ALONE, NOT_IN_FLIGHT, TOGETHER
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import (
    BlockedRange,
    CollectedMessage,
    DeliveryState,
    Offset,
    PartitionLease,
    Receipt,
    SubscriberHeartbeat,
)
from sqlqueue.models.consumer_group import IN_FLIGHT
from sqlqueue.models.subscriber import WAITS

MOST_FOUND = 1_000  # collected messages of one search
LEASE_STATES = (_("free"), _("expired"), _("held"), _("waits for an earlier epoch"))  # by section


@admin.register(BlockedRange)
class BlockedRangeAdmin(KeysetAdmin):
    """The list of blocked ranges, by topic, group, partition and key."""

    list_display = ("partition_key", "consumer_group", "topic", "partition", "priority", "low", "high", "messages")
    search_fields = ("=topic",)
    key = ("topic", "consumer_group", "partition", "priority", "partition_key")


@admin.register(CollectedMessage)
class CollectedMessageAdmin(KeysetAdmin):
    """The list of collected messages, newest first. The search finds those of an offset, an id or a key."""

    list_display = ("message_offset", "topic", "key_and_id", "ends", "created_at", "collected_at")
    search_fields = ("=message_offset", "=message_id", "=partition_key")
    exclude = ("body",)

    @admin.display(description=_("outcomes"))
    def ends(self, row: CollectedMessage) -> str:
        """Show its outcome in each group."""
        lines = ((group, end.get("outcome", "")) for group, end in sorted(row.outcomes.items()))
        return format_html_join("", '<div class="sqlqueue-outcome">{}: {}</div>', lines) or "–"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Search each column by its own index: a condition over several would read the table."""
        term = search_term.strip()
        if not term:
            return queryset, False
        searches: list[dict[str, Any]] = [{"message_id": term}, {"partition_key": term}]
        if term.isascii() and term.isdigit() and len(term) < 19:
            searches.append({"message_offset": int(term)})
        found = [
            list(queryset.filter(**one).order_by("-pk").values_list("pk", flat=True)[: MOST_FOUND + 1])
            for one in searches
        ]
        if any(len(keys) > MOST_FOUND for keys in found):
            text = _("More than %(most)d messages have been found, of which these are the newest %(most)d.")
            messages.info(request, text % {"most": MOST_FOUND})
        return queryset.filter(pk__in=[key for keys in found for key in keys[:MOST_FOUND]]), False


@admin.register(DeliveryState)
class DeliveryStateAdmin(KeysetAdmin):
    """The list of delivery states, newest first. A message's own page shows its status in every group."""

    list_display = (
        "message_offset",
        "consumer_group",
        "topic",
        "partition",
        "state",
        "retry_count",
        "invisible_until",
        "error",
    )

    fields = (
        "consumer_group",
        "topic",
        "partition",
        "priority",
        "message_offset",
        "acked",
        "in_flight_as",
        "invisible_until",
        "retry_count",
        "last_error",
    )

    @admin.display(description=_("in flight"))
    def in_flight_as(self, row: DeliveryState) -> str:
        """Show how it is in flight. Values above ALONE are alone, too: they count the deaths before."""
        mode = str(dict(IN_FLIGHT)[max(NOT_IN_FLIGHT, min(row.in_flight, ALONE))])
        if row.in_flight <= ALONE:
            return mode
        deaths = row.in_flight - TOGETHER
        return _("%(mode)s, after the end of %(deaths)d consumer processes") % {"mode": mode, "deaths": deaths}

    @admin.display(description=_("state"))
    def state(self, row: DeliveryState) -> str:
        """Show the state as a text."""
        if row.acked:
            return str(_("acked"))
        if row.in_flight != NOT_IN_FLIGHT:
            return str(_("in flight"))
        return str(_("failing") if row.retry_count > 0 else _("waits"))

    @admin.display(description=_("last error"))
    def error(self, row: DeliveryState) -> str:
        """Show the last line of the last error."""
        return Truncator(harmless((row.last_error or "").strip().rpartition("\n")[2])).chars(200) or "–"


@admin.register(PartitionLease)
class LeaseAdmin(KeysetAdmin):
    """The list of leases: free ones first, then expired ones."""

    list_display = ("consumer_group", "topic", "partition", "state", "holder", "valid_until", "fencing_token")
    search_fields = ("=holder",)
    key = ("topic", "consumer_group", "partition")

    def sections(self) -> Sequence[Q]:
        """Return the conditions for free, expired, held and waiting leases."""
        current = Q(valid_until__gt=DatabaseNow())
        taken = ~Q(holder__in=("", WAITS))
        return [Q(holder=""), taken & ~current, taken & current, Q(holder=WAITS)]

    @admin.display(description=_("state"))
    def state(self, lease: PartitionLease) -> str:
        """Show the state as a text."""
        return str(LEASE_STATES[section_of(lease)])


@admin.register(Offset)
class OffsetAdmin(KeysetAdmin):
    """The list of offset rows, by topic, group and partition. A group's own page marks the stuck ones."""

    list_display = (
        "consumer_group",
        "topic",
        "partition",
        "priority",
        "offset_acked",
        "position",
        "claimed_to",
        "updated_at",
        "fencing_token",
    )
    search_fields = ("=topic",)
    key = ("topic", "consumer_group", "partition", "priority")


@admin.register(Receipt)
class ReceiptAdmin(KeysetAdmin):
    """The list of receipts, newest first. The search finds those of a message by its offset."""

    list_display = (
        "message_offset",
        "consumer_group",
        "topic",
        "partition",
        "outcome",
        "attempts",
        "started_at",
        "seconds",
        "worker",
    )
    search_fields = ("=message_offset",)

    @admin.display(description=_("seconds"))
    def seconds(self, receipt: Receipt) -> str:
        """Show how long the handler took."""
        return f"{(receipt.finished_at - receipt.started_at).total_seconds():.3f}"


@admin.register(SubscriberHeartbeat)
class SubscriberAdmin(KeysetAdmin):
    """The list of subscribers: those whose heartbeat has expired first, with the exit status of those that died. They
    are removed some minutes later."""

    list_display = (
        "subscriber",
        "consumer_group",
        "topic",
        "alive",
        "exit_status",
        "activity",
        "host",
        "pid",
        "beat_at",
        "started_at",
    )
    key = ("topic", "consumer_group", "subscriber")

    def sections(self) -> Sequence[Q]:
        """Return the conditions for expired and alive subscribers. Few rows: one for each process and group."""
        alive = SubscriberHeartbeat.objects.living()
        return [~alive, alive]

    @admin.display(description=_("alive"), boolean=True)
    def alive(self, subscriber: SubscriberHeartbeat) -> bool:
        """Show whether the last heartbeat is still valid."""
        return section_of(subscriber) == 1
