"""Replays: orders to deliver dead letters again, and how far they are."""

from __future__ import annotations

from django.contrib import admin

from sqlqueue.admin.keyset import KeysetAdmin
from sqlqueue.models import Replay


@admin.register(Replay)
class ReplayAdmin(KeysetAdmin):
    """The orders, newest first."""

    list_display = (
        "id",
        "topic",
        "consumer_group",
        "fingerprint",
        "state",
        "done",
        "total",
        "ordered_by",
        "created_at",
    )
