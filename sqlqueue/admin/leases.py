"""Leases: who owns which partition."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.ordered import OrderedAdmin, section_of
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import PartitionLease

FREE, EXPIRED, HELD = range(3)
WORDS = {FREE: _("nobody owns it"), EXPIRED: _("has expired"), HELD: _("held")}


@admin.register(PartitionLease)
class LeaseAdmin(OrderedAdmin):
    """Partitions that nobody owns first, then those whose owner has not renewed in time."""

    list_display = ("consumer_group", "topic", "partition", "state", "holder", "valid_until", "fencing_token")
    search_fields = ("=holder",)
    key = ("topic", "consumer_group", "partition")

    def sections(self) -> Sequence[Q]:
        """Free, expired, held. A row for each partition of each group."""
        current = Q(valid_until__gt=DatabaseNow())
        return [Q(holder=""), ~Q(holder="") & ~current, ~Q(holder="") & current]

    @admin.display(description=_("state"))
    def state(self, lease: PartitionLease) -> str:
        """In words."""
        return str(WORDS[section_of(lease)])
