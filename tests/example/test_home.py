"""The home page and the admin's pages of the example's own tables."""

from pathlib import Path

import pytest
from django.conf import LazySettings
from django.test import Client

from example_project.flights.models import Aircraft, Alert, DelayStatistic, FreeSeats, PublishedBatch
from tests.factories import OffsetFactory

pytestmark = pytest.mark.django_db

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


@pytest.fixture(autouse=True)
def example_site(settings: LazySettings) -> None:
    settings.ROOT_URLCONF = "example_project.urls"
    settings.TEMPLATES = [{**settings.TEMPLATES[0], "DIRS": [TEMPLATES]}]


def test_an_empty_site_says_how_to_begin(client: Client) -> None:
    page = client.get("/").content.decode()
    assert "No group has registered yet: run <code>make demo</code>" in page


def test_the_groups_are_shown(client: Client) -> None:
    PublishedBatch.objects.create(start=0, stop=20_000)
    OffsetFactory(consumer_group="aircraft", topic="flights", position=12_345)
    page = client.get("/").content.decode()
    assert "20,000 flights published" in page
    assert "<td>aircraft</td>" in page
    assert "12,345" in page


@pytest.mark.parametrize("table", ["aircraft", "alert", "delaystatistic", "freeseats", "publishedbatch"])
def test_the_admin_lists_the_table(admin_client: Client, table: str) -> None:
    Aircraft.objects.create(tail_number="N1", legs=1)
    Alert.objects.create(flight="UA1-2013-01-01-EWR", delay=121, reason="late")
    DelayStatistic.objects.create(origin="EWR", carrier="UA")
    FreeSeats.objects.create(flight="UA-1545", free=150)
    PublishedBatch.objects.create(start=0, stop=500)
    page = admin_client.get(f"/admin/flights/{table}/")
    assert page.status_code == 200
