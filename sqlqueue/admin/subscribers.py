"""Subscribers: who is alive, and who has stopped beating."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.ordered import OrderedAdmin, section_of
from sqlqueue.database.fields import DatabaseNow
from sqlqueue.models import SubscriberHeartbeat


@admin.register(SubscriberHeartbeat)
class SubscriberAdmin(OrderedAdmin):
    """Those that have missed their beats first; they are removed some minutes after they have died."""

    list_display = (
        "subscriber",
        "consumer_group",
        "topic",
        "alive",
        "activity",
        "host",
        "pid",
        "beat_at",
        "started_at",
    )
    key = ("topic", "consumer_group", "subscriber")

    def sections(self) -> Sequence[Q]:
        """The dead before the living. Few rows: one for each process and group."""
        alive = Q(expires_at__gt=DatabaseNow())
        return [~alive, alive]

    @admin.display(description=_("alive"), boolean=True)
    def alive(self, subscriber: SubscriberHeartbeat) -> bool:
        """Whether its last beat still counts."""
        return section_of(subscriber) == 1
