"""The example project, as `make site` shows it."""

from pathlib import Path

from playwright.sync_api import Browser

from tests.browser.screenshots import Photographer, Site
from tests.browser.test_overview import OVERVIEW, cell
from tests.processes import wait_until

FLIGHTS = 1_000


def test_flights_are_seen_to_arrive_and_what_failed_is_found(browser: Browser, tmp_path: Path) -> None:
    site = Site(tmp_path)
    with site.open():
        site.publish(FLIGHTS)
        operator = Photographer(browser, site, tmp_path)
        page = operator.page
        page.goto(site.url + OVERVIEW)

        def arrived() -> bool:
            page.reload()
            return all(cell(page, group, "Lag") == "0" for group in ("aircraft", "delays", "alerts"))

        wait_until(arrived, timeout=240, message=lambda: page.inner_text("#content"))
        operator.picture("overview")
        dead = int(cell(page, "alerts", "Dead letters"))
        assert dead > 0
        page.get_by_role("row", name="alerts").get_by_role("link", name=str(dead), exact=True).click()
        page.get_by_role("rowheader", name="NeverDeparted in flights/consumers.py:alert_long_delays").wait_for()
    assert (tmp_path / "overview.png").stat().st_size
