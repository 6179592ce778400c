"""Somebody finds what failed, mends the handler, and delivers it again: the first one as a trial, then the rest."""

import re

from django.contrib.admin.models import LogEntry
from playwright.sync_api import expect

from sqlqueue.models import Message
from tests.browser.shop import TOPIC, Shop
from tests.browser.tour import LETTERS
from tests.browser.visiting import PATIENCE, Visitor
from tests.processes import wait_until

FAILURE = "no such place: Atlantis"


def test_a_failure_is_found_mended_and_replayed_as_a_trial_and_then_the_rest(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = operator.open("/admin/sqlqueue/message/")
    page.get_by_role("textbox", name="Id").fill("102")
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("table").get_by_role("link", name=re.compile(r"^\d+$")).click()
    page.get_by_role("row", name="mail").get_by_role("link", name="dead letter").click()
    expect(page.get_by_label("Error")).to_contain_text(FAILURE)

    shop.mended = True
    shop.open.clear()
    shop.serve()
    operator.open(LETTERS)
    kind = page.get_by_role("row").filter(has_text=FAILURE)
    expect(kind.get_by_role("cell", name="4", exact=True)).to_be_visible()
    kind.get_by_role("button", name="Replay dead letters").click()
    expect(page.get_by_role("heading", name="Chosen: 4")).to_be_visible()
    expect(page.get_by_label("First one as a trial")).to_be_checked()
    page.get_by_role("button", name="Replay dead letters").click()

    expect(page.get_by_text("Requested a replay of 4 dead letters")).to_be_visible()
    bar = page.get_by_role("progressbar")
    replay = page.url

    def done() -> int:
        page.goto(replay)
        return int(bar.get_attribute("value") or 0)

    wait_until(lambda: done() == 1)  # the trial; it is with the handler
    assert Message.objects.dead_letters("mail", TOPIC).count() == 3
    expect(bar).to_have_attribute("max", "4")
    shop.open.set()
    wait_until(lambda: done() == 4)
    wait_until(lambda: sorted(number for number in shop.sent if 100 <= number < 104) == [100, 101, 102, 103])
    operator.open(LETTERS)
    expect(page.get_by_text("There are no dead letters.")).to_be_visible(timeout=PATIENCE)
    assert LogEntry.objects.filter(change_message__contains="4 dead letters").exists()


def test_a_trial_that_dies_again_leaves_the_rest_where_it_was(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    shop.serve()
    page = operator.open(LETTERS)
    page.get_by_role("row").filter(has_text=FAILURE).get_by_role("button", name="Replay dead letters").click()
    page.get_by_role("button", name="Replay dead letters").click()
    replay = page.url
    wait_until(lambda: page.goto(replay) and page.get_by_text("1 of 4: failed").count())
    assert Message.objects.dead_letters("mail", TOPIC).count() == 4


def test_those_that_are_ticked_are_discarded_with_a_reason(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = operator.open(LETTERS)
    page.get_by_role("row").filter(has_text=FAILURE).get_by_role("link", name=FAILURE).click()
    boxes = page.get_by_role("row").get_by_role("checkbox", name="Select this object for an action")
    expect(boxes).to_have_count(4)
    boxes.nth(0).check()
    boxes.nth(2).check()
    page.get_by_role("combobox", name="Action").select_option(label="Discard dead letters")
    page.get_by_role("button", name="Run").or_(page.get_by_role("button", name="Go", exact=True)).click()
    page.get_by_role("button", name="Discard dead letters").click()
    expect(page.get_by_text("This field is required.")).to_be_visible()
    page.get_by_label("Reason").fill("Atlantis sank")
    page.get_by_role("button", name="Discard dead letters").click()
    expect(page.get_by_text("Discarded 2 dead letters")).to_be_visible()
    assert Message.objects.dead_letters("mail", TOPIC).count() == 2
    assert LogEntry.objects.filter(change_message__contains="Atlantis sank").exists()
