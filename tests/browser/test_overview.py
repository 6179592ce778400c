"""The overview, read while consumers are at work."""

import re

from playwright.sync_api import Locator, Page, expect

from tests.browser.shop import Shop
from tests.browser.visiting import Visitor
from tests.processes import wait_until

OVERVIEW = "/admin/sqlqueue/overview/"


def row(page: Page, group: str) -> Locator:
    """The table's row of a group."""
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=group))


def cell(page: Page, group: str, column: str) -> str:
    """What stands in a group's row below a heading, without the small print; "" while there is no such row."""
    found = row(page, group).locator(f"[data-label='{column}']").all_inner_texts()
    return found[0].splitlines()[0].strip() if found else ""


def test_a_backlog_is_seen_to_drain(operator: Visitor, shop: Shop) -> None:
    shop.open.clear()
    shop.order(*range(300))
    page = operator.open(OVERVIEW)
    expect(page.get_by_text("Nothing has been published yet.")).to_have_count(0)
    expect(page.get_by_text("No group has registered")).to_be_visible()

    shop.serve()
    wait_until(lambda: page.reload() and cell(page, "accounts", "Lag") == "0")
    wait_until(lambda: page.reload() and int(cell(page, "mail", "In flight")) > 0)
    assert cell(page, "mail", "Lag") == "300"

    shop.open.set()
    wait_until(lambda: page.reload() and cell(page, "mail", "Lag") == "0")
    assert sorted(shop.sent) == list(range(300))
    assert cell(page, "mail", "Subscribers") == "1"
    assert cell(page, "mail", "Oldest") == "–"


def test_charts_say_what_they_draw(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = operator.open(OVERVIEW)
    for title in ("Acknowledged a second", "Lag in messages", "Failures a second"):
        chart = page.get_by_role("img", name=title).first
        expect(chart).to_be_visible()
        expect(chart).to_have_accessible_name(re.compile("From .* to "))
    page.get_by_role("navigation", name="Time shown").get_by_role("link", name="24 hours").click()
    expect(page.get_by_role("link", name="24 hours")).to_have_attribute("aria-current", "true")


def test_who_is_away_is_told_and_one_click_from_help(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    shop.absent()
    page = operator.open(OVERVIEW)
    told = page.get_by_role("region", name="What needs attention").get_by_role("listitem").filter(has_text="archive")
    expect(told).to_contain_text("25 messages wait for it")
    told.get_by_role("link", name="The group's page").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("archive of orders")
    page.get_by_role("link", name="Remove").click()
    page.get_by_role("button", name="Remove").click()
    expect(page.get_by_text("archive of orders is removed.")).to_be_visible()
    page = operator.open(OVERVIEW)
    expect(page.get_by_text("archive")).to_have_count(0)
