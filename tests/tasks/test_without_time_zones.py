"""Tasks of a project with USE_TZ off."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.utils import timezone

from sqlqueue.models import Result
from sqlqueue.testing import drain
from tests.tasks.declared import samples

pytestmark = pytest.mark.django_db(transaction=True)


def test_naive_times_are_local_ones(settings: Any) -> None:
    settings.USE_TZ = False
    later = samples.note.using(run_after=datetime.now() + timedelta(hours=1)).enqueue("later")  # noqa: DTZ005
    now = samples.note.enqueue("now")
    assert drain() == 1
    assert drain(ahead=timedelta(hours=1, seconds=1)) == 1
    assert samples.RAN == ["now", "later"]
    now.refresh()
    later.refresh()
    assert now.status == later.status == "SUCCESSFUL"
    assert now.enqueued_at.tzinfo is None
    settings.USE_TZ = True
    for row in Result.objects.all():
        assert abs(row.expires_at - timezone.now() - timedelta(days=7)) < timedelta(minutes=1)
