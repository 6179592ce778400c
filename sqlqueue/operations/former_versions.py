"""Consumers of versions that do not know what is about to be changed: the change waits until none lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlqueue.models import SubscriberHeartbeat

# Versions, and beginnings of them, whose processes know one epoch only. "": of the time before heartbeats told it.
ONE_EPOCH: Final = ("", "0.1.", "0.2.0.dev0")


def former_subscribers(alias: str, versions: Sequence[str]) -> list[str]:
    """Return the living subscribers of these versions, with their hosts."""
    rows = SubscriberHeartbeat.objects.using(alias).alive().values_list("subscriber", "host", "version").distinct()
    return sorted(
        f"{name} on {host} (version {version or 'unknown'})"
        for name, host, version in rows
        if _is_of(version, versions)
    )


def _is_of(version: str, versions: Sequence[str]) -> bool:
    return version in versions or any(version.startswith(one) for one in versions if one.endswith("."))
