"""Lists by key: every row is on one page, and no page counts or skips rows."""

import re

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from sqlqueue.admin.keyset import page_of
from sqlqueue.models import Request
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


def link(html: str, rel: str) -> str | None:
    found = re.search(rf'href="([^"]*)" rel="{rel}"', html)
    return found and found[1].replace("&amp;", "&")


def test_all_rows_are_seen_once_to_and_fro(admin_client: Client, replays: list[int]) -> None:
    pages, address = [], ""
    while address is not None:
        html = admin_client.get(reverse(LIST) + address).content.decode()
        pages.append(keys(html))
        address = link(html, "next")
    assert [key for page in pages for key in page] == replays
    assert [len(page) for page in pages] == [50, 50, 20]
    back = [pages[-1]]
    while (address := link(html, "prev")) is not None:
        html = admin_client.get(reverse(LIST) + address).content.decode()
        back.append(keys(html))
    assert back == pages[::-1]


def test_nothing_is_counted_or_skipped(admin_client: Client, replays: list[int]) -> None:
    with CaptureQueriesContext(
        connection,
    ) as seen:
        assert admin_client.get(reverse(LIST), {"before": replays[60]}).status_code == 200
    statements = [query["sql"] for query in seen if "sqlqueue_request" in query["sql"]]
    assert len(statements) == 1
    assert not re.search(r"COUNT\(|OFFSET \d", statements[0])


@pytest.mark.parametrize("wrong", ["x", "1-", "1e3", "²", "9" * 40, ""])
def test_what_is_no_key_shows_the_newest(admin_client: Client, replays: list[int], wrong: str) -> None:
    for name in ("before", "after"):
        html = admin_client.get(reverse(LIST), {name: wrong}).content.decode()
        assert keys(html) == replays[:50]


def test_pages_at_the_ends(replays: list[int]) -> None:
    rows = Request.objects.all()

    def of(before: int | None = None, after: int | None = None) -> tuple[list[int], int | None, int | None]:
        page = page_of(rows, 50, before, after)
        return [row.pk for row in page.rows], page.older, page.newer

    assert of() == (replays[:50], replays[49], None)
    assert of(before=replays[-1]) == ([], None, replays[-1] - 1)
    assert of(after=replays[-1] - 1) == (replays[-50:], replays[-1], replays[-50])
    assert of(after=replays[0]) == (replays[:50], replays[49], None)
    assert of(after=replays[50]) == (replays[:50], replays[49], None)
