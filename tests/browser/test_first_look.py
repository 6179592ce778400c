"""What is met by those who open the admin: what is wrong comes first, and what is needed is one click away."""

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from sqlqueue import publish
from sqlqueue.log.groups import register
from sqlqueue.models import Activity, ConsumerGroup, Message
from sqlqueue.operations.topics import pause
from tests.admin.test_navigation import NEEDED, OTHERS
from tests.browser.layout import WIDTHS
from tests.browser.shop import TOPIC, Shop
from tests.browser.test_overview import OVERVIEW
from tests.browser.tour import INDEX
from tests.browser.visiting import Visitor
from tests.logs import LOG

pytestmark = pytest.mark.parametrize("width", WIDTHS)


def narrowed(visitor: Visitor, width: int) -> Page:
    visitor.page.set_viewport_size({"width": width, "height": 844})
    return visitor.page


def test_what_needs_attention_leads_to_where_something_can_be_done(operator: Visitor, shop: Shop, width: int) -> None:
    shop.trouble()
    register(LOG, "books", TOPIC, start="earliest")
    pause(LOG, TOPIC, "books")
    publish("parcels", 1)
    page = narrowed(operator, width)
    for text, link, heading in (
        ("mail of orders has 4 dead letters.", "Its dead letters", "Dead letters"),
        ("books of orders is paused: 25 messages wait for it", "The group's page", "books of orders"),
        ("parcels has messages, and no consumer group", "The topic's page", "parcels"),
    ):
        operator.open(OVERVIEW)
        told = page.get_by_role("region", name="What needs attention").get_by_role("listitem").filter(has_text=text)
        expect(told).to_be_visible()
        told.get_by_role("link", name=link).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    paused = ConsumerGroup.objects.get(consumer_group="books")
    operator.open(f"{INDEX}consumergroup/{paused.pk}/change/")
    expect(page.get_by_role("region", name="Partitions")).to_be_visible()
    expect(page.get_by_text("stuck")).to_have_count(0)


def test_the_index_begins_with_what_is_needed(operator: Visitor, shop: Shop, width: int) -> None:
    page = narrowed(operator, width)
    operator.open(INDEX)
    links = page.locator("#content-main th a")
    expect(links).to_have_text([*NEEDED, *OTHERS])
    links.filter(has_text="Offsets").click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("offset")
    if width == 1280:
        expect(page.locator("#nav-sidebar .app-sqlqueue th a")).to_have_text([*NEEDED, *OTHERS])


def test_a_dead_letters_page_begins_with_its_exception_and_tells_the_originals_history(
    operator: Visitor, shop: Shop, width: int
) -> None:
    shop.trouble()
    letter = Message.objects.dead_letters("mail", TOPIC)[0]
    page = narrowed(operator, width)
    operator.open(f"{INDEX}message/{letter.offset}/change/")
    first = page.locator("#content-main h2, #content-main caption").first
    expect(first).to_have_text("Why it failed in mail")
    error = page.get_by_role("region", name="Why it failed in mail")
    expect(error.locator("strong")).to_have_text("no such place: Atlantis")
    expect(error).to_be_in_viewport()  # without scrolling
    expect(page.get_by_role("row").filter(has_text="accounts")).to_contain_text("acknowledged")
    expect(page.get_by_role("row").filter(has_text="dead").first).to_be_visible()
    page.get_by_role("link", name=f"orders[{letter.partition}]@{letter.original_offset}").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"Message {letter.original_offset}")


def test_charts_have_an_axis_of_values(operator: Visitor, shop: Shop, width: int) -> None:
    shop.trouble()
    Activity.objects.all().delete()
    Activity.objects.create(topic=TOPIC, consumer_group="mail", minute=timezone.now(), lag=42)
    page = narrowed(operator, width)
    operator.open(OVERVIEW)
    chart = page.locator("figure").filter(has_text="Lag in messages")
    expect(chart.locator(".sqlqueue-axis span")).to_have_text(["50", "25", "0"])
    svg, axis = chart.locator("svg").bounding_box(), chart.locator(".sqlqueue-axis").bounding_box()
    assert svg is not None
    assert axis is not None
    assert axis["x"] + axis["width"] <= svg["x"]
    assert axis["y"] == pytest.approx(svg["y"], abs=3)  # each value stands at its height
    assert axis["height"] == pytest.approx(svg["height"], abs=3)


def test_a_page_with_live_figures_refreshes_itself_while_its_switch_is_on(
    operator: Visitor, shop: Shop, width: int
) -> None:
    shop.trouble()
    page = narrowed(operator, width)
    page.clock.install()
    operator.open(OVERVIEW)
    control = page.get_by_label("Refresh every 10 seconds")
    expect(control).not_to_be_checked()  # as in all tests
    publish("parcels", 1)
    page.clock.run_for(25_000)
    expect(page.get_by_text("parcels has messages")).to_have_count(0)
    control.check()
    page.clock.run_for(11_000)
    expect(page.get_by_text("parcels has messages")).to_be_visible()

    page.reload()
    expect(control).to_be_checked()  # it is remembered
    page.get_by_role("link", name="24 hours").focus()  # in the midst of something
    Message.objects.filter(topic="parcels").delete()
    page.clock.run_for(25_000)
    expect(page.get_by_text("parcels has messages")).to_be_visible()
    page.evaluate("document.activeElement.blur()")
    page.clock.run_for(11_000)
    expect(page.get_by_text("parcels has messages")).to_have_count(0)
