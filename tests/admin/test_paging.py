"""Lists by key: every row is on one page, and no page counts or skips rows."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from tests.admin.operating import through
from tests.factories import RequestFactory

pytestmark = pytest.mark.django_db
LIST = "admin:sqlqueue_request_changelist"


@pytest.fixture
def replays() -> list[int]:
    """The keys of 120 rows, newest first."""
    made = [RequestFactory(state="done" if n % 3 else "new") for n in range(120)]
    return [replay.pk for replay in reversed(made)]


def keys(html: str) -> list[int]:
    return [int(key) for key in re.findall(r"/sqlqueue/request/(\d+)/change/", html)]


def test_all_rows_are_seen_once(admin_client: Client, replays: list[int]) -> None:
    every = list(through(admin_client, reverse(LIST)))
    pages = [keys(html) for html in every]
    assert [key for page in pages for key in page] == replays
    assert [len(page) for page in pages] == [50, 50, 20]
    assert '<a href="?">First page</a>' in every[-1]


def test_nothing_is_counted_or_skipped(admin_client: Client, replays: list[int]) -> None:
    with CaptureQueriesContext(connection) as seen:
        html = admin_client.get(reverse(LIST), {"from": f"[0, {replays[60]}]"}).content.decode()
    assert keys(html) == replays[61:111]
    statements = [query["sql"] for query in seen if "sqlqueue_request" in query["sql"]]
    assert len(statements) == 1
    assert not re.search(r"COUNT\(|OFFSET \d", statements[0])


@pytest.mark.parametrize("wrong", ["x", "[0]", '[0, "1-"]', "[0, 1, 1]", '["0", 1]', "[0, null]", ""])
def test_what_no_page_has_made_shows_the_newest(admin_client: Client, replays: list[int], wrong: str) -> None:
    assert keys(admin_client.get(reverse(LIST), {"from": wrong}).content.decode()) == replays[:50]
