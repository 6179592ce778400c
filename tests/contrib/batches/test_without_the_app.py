"""Without the app in INSTALLED_APPS batches are refused, and their members too: both say what is missing."""

from typing import Any

import pytest
from django.apps import apps

import sqlqueue
from sqlqueue import Batch, ConfigurationError, get_status
from sqlqueue.core import effects
from tests.consuming import Consuming

APP = "sqlqueue.contrib.batches"


@pytest.mark.parametrize("name", ["Batch", "BatchStatus", "cancel_batch", "get_batch"])
def test_its_names_say_which_app_is_missing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = apps.is_installed
    monkeypatch.setattr(apps, "is_installed", lambda app: app != APP and installed(app))
    with pytest.raises(ConfigurationError, match=f"sqlqueue.{name} needs '{APP}' in INSTALLED_APPS"):
        sqlqueue.__getattr__(name)  # as at its first use


@pytest.mark.parametrize("options", [{}, {"atomic": True}, {"batch": True}], ids=str)
def test_a_member_is_a_dead_letter_that_says_so(
    options: dict[str, Any], consuming: Consuming, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Batch() as batch:
        id = batch.publish("t", 1).id
    sqlqueue.publish("t", 2)
    monkeypatch.setattr(effects, "_with_header", [])
    monkeypatch.setattr(effects, "_missing", dict(effects.APPS))
    seen: list[Any] = []
    consuming.consumer("t", lambda delivery: seen.append(delivery), **options)
    consuming.drain()
    assert len(seen) == 1
    status = get_status("t", id=id)
    assert status is not None
    assert f"needs '{APP}' in INSTALLED_APPS" in str(status)
