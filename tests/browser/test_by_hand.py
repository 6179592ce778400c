"""An operator corrects what is scheduled, reschedules many, deletes and purges, on a wide and on a narrow screen."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from sqlqueue import publish
from sqlqueue.log.schedule import move_due
from sqlqueue.models import ConsumerGroup, Message, Request, ScheduledMessage
from tests.browser.shop import TOPIC, Shop
from tests.browser.visiting import Visitor
from tests.logs import LOG
from tests.processes import wait_until

SCHEDULED = "/admin/sqlqueue/scheduledmessage/"
LONG_KEY = "customer-" + "x" * 240


@pytest.fixture(params=[1280, 390])
def visitor(request: pytest.FixtureRequest, operator: Visitor) -> Iterator[Visitor]:
    """A superuser at a page as wide as a desk's or a telephone's, none of whose pages goes sideways."""
    operator.page.set_viewport_size({"width": request.param, "height": 800})
    yield operator
    fits(operator.page)


def fits(page: Page) -> None:
    """Fail if anything is wider than what the page is seen through, or if the page goes sideways."""
    wide = page.evaluate(
        "[...document.querySelectorAll('#content *')].filter((one) => one.checkVisibility()"
        " && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1"
        " && !one.closest('.sqlqueue-scroll, .results')).map((one) => one.outerHTML.slice(0, 200))"
    )
    assert not wide
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def group(name: str = "mail") -> str:
    return f"/admin/sqlqueue/consumergroup/{ConsumerGroup.objects.get(consumer_group=name).pk}/change/"


def test_one_that_was_refused_is_corrected_and_delivered(visitor: Visitor, shop: Shop) -> None:
    shop.trouble()
    payload = {"number": 500, "to": "Avalon", "wish": "ü" * 500}
    ScheduledMessage.objects.create(topic=TOPIC, payload=payload, partition_key=LONG_KEY, priority=9)
    assert move_due(LOG)
    shop.serve()
    page = visitor.open(SCHEDULED)
    page.get_by_role("row").filter(has_text="refused").get_by_role("link").first.click()
    expect(page.get_by_text("The log has refused this message: priority 9 is not one of topic")).to_be_visible()
    fits(page)
    page.get_by_label("Priority").fill("8")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("priority 8 is not one of topic")).to_be_visible()
    fits(page)
    page.get_by_label("Priority").fill("0")
    page.get_by_label("Payload").fill('{"number": 501, "to": "Avalon"}')
    page.get_by_role("button", name="Save").click()
    wait_until(lambda: 501 in shop.sent)
    assert not ScheduledMessage.objects.exists()


def test_one_that_is_due_tomorrow_is_run_now_and_another_taken_back(visitor: Visitor, shop: Shop) -> None:
    shop.trouble()
    for number in (600, 601):
        publish(TOPIC, {"number": number, "to": "Avalon"}, delay=86_400)
    first, second = ScheduledMessage.objects.order_by("id").values_list("pk", flat=True)
    page = visitor.open(f"{SCHEDULED}{first}/change/")
    page.get_by_role("link", name="Run now").click()
    expect(page.get_by_text("become due now")).to_be_visible()
    fits(page)
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_text("Due now: 1.")).to_be_visible()
    visitor.open(f"{SCHEDULED}{second}/change/")
    page.get_by_role("link", name="Take back").click()
    red = page.get_by_role("button", name="Take back")
    expect(red).to_have_css("background-color", "rgb(186, 33, 33)")
    red.click()
    expect(page.get_by_text("Taken back: 1.")).to_be_visible()
    shop.serve()
    wait_until(lambda: 600 in shop.sent)
    assert not ScheduledMessage.objects.exists()
    assert 601 not in shop.sent


def test_many_that_wait_are_rescheduled_at_a_rate(visitor: Visitor, shop: Shop) -> None:
    shop.order(*range(200, 206), to="Lyonesse")
    shop.trouble()
    shop.mended = True
    shop.serve()
    page = visitor.open(group())
    page.get_by_role("link", name="Reschedule many").click()
    page.get_by_label("Which").select_option("failing")
    page.get_by_label("Error").fill("cannot be REACHED")
    page.get_by_label("Rate").fill("3")
    page.get_by_role("button", name="Count what that would do").click()
    expect(page.get_by_text("deliveries would be rescheduled.")).to_be_visible()
    fits(page)
    page.get_by_role("button", name="Reschedule them").click()
    expect(page.get_by_text("Requested to reschedule")).to_be_visible()
    fits(page)
    progress = page.url
    wait_until(lambda: page.goto(progress) and page.get_by_text("done", exact=False).count())
    wait_until(lambda: set(shop.sent) >= set(range(200, 206)))
    wait_until(lambda: Request.objects.get().state == "done")
    page.goto(progress)
    bar = page.get_by_role("progressbar")
    expect(bar).to_have_attribute("value", bar.get_attribute("max") or "")


def test_a_message_is_deleted_once_the_reason_is_given(visitor: Visitor, shop: Shop) -> None:
    shop.trouble()
    waiting = Message.objects.get(topic=TOPIC, message_id="200").offset
    page = visitor.open(f"/admin/sqlqueue/message/{waiting}/change/")
    page.get_by_role("link", name="Delete from the log").click()
    expect(page.get_by_text("mail: 1 not settled, 0 in flight.")).to_be_visible()
    fits(page)
    page.get_by_label("Reason").fill("it was a test")
    page.get_by_role("button", name="Delete from the log").click()
    expect(page.get_by_text("because a group has not settled them: 1")).to_be_visible()
    visitor.open(f"/admin/sqlqueue/message/{waiting}/change/")
    page.get_by_role("link", name="Delete from the log").click()
    page.get_by_label("Reason").fill("it was a test")
    page.get_by_label("Also messages that groups have not settled").check()
    page.get_by_role("button", name="Delete from the log").click()
    expect(page.get_by_text("Deleted: 1.")).to_be_visible()
    assert not Message.objects.filter(offset=waiting).exists()


def test_a_topic_is_purged_after_a_count(visitor: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = visitor.open(f"/admin/sqlqueue/topic/{TOPIC}/change/")
    page.get_by_role("link", name="Purge").click()
    page.get_by_label("Also messages that groups have not settled").check()
    page.get_by_role("button", name="Count what that would do").click()
    expect(page.get_by_role("listitem").filter(has_text="up to there")).to_contain_text("25 messages")
    expect(page.get_by_role("listitem").filter(has_text="mail has not settled")).to_contain_text("1 of them")
    expect(page.get_by_text("Unsettled messages are never delivered.")).to_be_visible()
    fits(page)
    assert Message.objects.filter(topic=TOPIC).count() == 25
    page.get_by_role("button", name="Purge up to offset").click()
    expect(
        page.get_by_text("deleted at once: 25. Groups that skip messages they had not settled: mail.")
    ).to_be_visible()
    assert not Message.objects.filter(topic=TOPIC).exists()
    shop.serve()
    shop.order(700)
    wait_until(lambda: 700 in shop.sent)
