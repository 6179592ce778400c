"""The index and the sidebar of an admin site begin with what people need; the tables behind it follow."""

import re
from collections.abc import Callable

import pytest
from django.test import Client, override_settings

from tests.admin.test_overview import page, words

pytestmark = [pytest.mark.once, pytest.mark.django_db]

NEEDED = [
    "Overview",
    "Dead letters",
    "Messages",
    "Consumer groups",
    "Topics",
    "Scheduled messages",
    "Periodic schedules",
    "Requests",
]
OTHERS = [
    "Blocked ranges",
    "Collected messages",
    "Delivery states",
    "Offsets",
    "Partition leases",
    "Receipts",
    "Subscribers",
]


def entries(html: str, start: str) -> list[str]:
    """Return the queue's entries of a list of Django's, from where it starts in the page."""
    listed = html[html.index(start) :]
    module = listed[re.search(r"app-sqlqueue\b(?!_)", listed).start() :].partition("</table>")[0]
    return [words(row) for row in re.findall(r'<th scope="row".*?</th>', module, re.DOTALL)]


@pytest.mark.parametrize("address", ["/admin/", "/admin/sqlqueue/"])
def test_the_index_begins_with_what_people_need(admin_client: Client, address: str) -> None:
    assert entries(page(admin_client, address), 'id="content-main"') == [*NEEDED, *OTHERS]


@pytest.mark.parametrize("address", ["/admin/sqlqueue/topic/", "/admin/sqlqueue/overview/"])
def test_so_does_the_sidebar(admin_client: Client, address: str) -> None:
    assert entries(page(admin_client, address), 'id="nav-sidebar"') == [*NEEDED, *OTHERS]


@override_settings(ROOT_URLCONF="tests.admin.own_site")
def test_so_does_a_site_of_the_projects_own(admin_client: Client) -> None:
    html = page(admin_client, "/operations/")
    assert entries(html, 'id="content-main"') == [*NEEDED, *OTHERS]
    assert '"/admin/' not in html
    assert '/operations/sqlqueue/offset/"' in html


def test_who_may_view_little_is_shown_little(staff: Callable[..., Client]) -> None:
    html = page(staff("view_topic"), "/admin/")
    assert entries(html, 'id="content-main"') == ["Topics"]
    clerk = staff("view_message", "view_offset")
    assert entries(page(clerk, "/admin/"), 'id="content-main"') == ["Dead letters", "Messages", "Offsets"]


@pytest.mark.parametrize(
    ("address", "present"),
    [
        ("message/", "Messages"),
        ("deadletter/", "Dead letters"),
        ("overview/", "Overview"),
    ],
)
def test_one_entry_of_the_sidebar_is_marked_as_the_present_page(
    admin_client: Client, address: str, present: str
) -> None:
    html = page(admin_client, f"/admin/sqlqueue/{address}")
    sidebar = html[html.index('id="nav-sidebar"') :]
    assert re.findall(r'aria-current="page">(.*?)</a>', sidebar) == [present]
