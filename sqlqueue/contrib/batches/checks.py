"""The system check of batches."""

from __future__ import annotations

from typing import Any

from django.core.checks import CheckMessage, Error, register

from sqlqueue.checks import TAG
from sqlqueue.contrib.batches.collect import retention
from sqlqueue.exceptions import ConfigurationError


@register(TAG)
def check_retention(**kwargs: Any) -> list[CheckMessage]:
    """sqlqueue_batches.E001: the setting SQLQUEUE_BATCHES is wrong."""
    try:
        retention()
    except ConfigurationError as error:
        return [Error(str(error), hint="docs/guide.md has its option.", id="sqlqueue_batches.E001")]
    return []
