"""Leases: the owner of each partition of each group."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset_sections import SectionedAdmin, section_of
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import PartitionLease
from sqlqueue.models.partition_lease import WAITS

FREE, EXPIRED, HELD, WAITING = range(4)
STATES = {FREE: _("free"), EXPIRED: _("expired"), HELD: _("held"), WAITING: _("waits for an earlier epoch")}


@admin.register(PartitionLease)
class LeaseAdmin(SectionedAdmin):
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
        return str(STATES[section_of(lease)])
