"""Subscribers: those that are alive, and those whose heartbeat has expired."""

from __future__ import annotations

from collections.abc import Sequence

from django.contrib import admin
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.keyset_sections import SectionedAdmin, section_of
from sqlqueue.models import SubscriberHeartbeat


@admin.register(SubscriberHeartbeat)
class SubscriberAdmin(SectionedAdmin):
    """The list of subscribers: those whose heartbeat has expired first, with the exit status of those that died. They
    are removed some minutes later."""

    list_display = (
        "subscriber",
        "consumer_group",
        "topic",
        "alive",
        "exit_status",
        "activity",
        "partitions",
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
