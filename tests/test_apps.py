"""The app keeps its tables usable, whatever management commands do to them."""

import pytest
from django.core.management import call_command

from sqlqueue import publish
from sqlqueue.database.insert_sql import SLOTS
from sqlqueue.models import PublishGate, Topic
from sqlqueue.testing import published


@pytest.mark.django_db(transaction=True)
def test_an_emptied_database_can_be_published_to_again() -> None:
    publish("emptied", 1)
    call_command("flush", interactive=False, verbosity=0)
    assert not published()
    assert PublishGate.objects.filter(slot__gte=0).count() == SLOTS
    publish("emptied", 2)
    assert [message.payload for message in published("emptied")] == [2]
    assert Topic.objects.filter(name="emptied").exists()
