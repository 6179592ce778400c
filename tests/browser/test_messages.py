"""Messages are looked at, and told when to be tried again."""

import json

from playwright.sync_api import expect

from sqlqueue.models import Message
from tests.browser.shop import EVIL, TOPIC, Shop
from tests.browser.tour import LETTERS, lists
from tests.browser.visiting import Visitor
from tests.processes import wait_until


def address(name: str) -> str:
    """The page of the message with this id."""
    return f"/admin/sqlqueue/message/{Message.objects.get(topic=TOPIC, message_id=name).offset}/change/"


def test_one_that_waits_an_hour_is_rescheduled_for_now(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = operator.open(address("200"))
    failing = page.get_by_role("row", name="mail failing")
    expect(failing).to_be_visible()
    shop.mended = True
    shop.serve()
    page.get_by_role("link", name="Reschedule for a group").click()
    page.get_by_label("Group").select_option("mail")
    page.get_by_label("Delay").fill("0")
    page.get_by_label("Attempts so far").fill("0")
    page.get_by_role("button", name="Reschedule for a group").click()
    expect(page.get_by_text("Rescheduled for the group mail, due in 0 s: 1.")).to_be_visible()
    wait_until(lambda: 200 in shop.sent)
    wait_until(
        lambda: operator.open(address("200")) and page.get_by_role("row").filter(has_text="mail acknowledged").count()
    )


def test_several_are_rescheduled_from_the_list(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    page = operator.open("/admin/sqlqueue/message/")
    page.get_by_label("Topic").select_option(TOPIC)
    page.get_by_role("button", name="Search").click()
    page.get_by_role("checkbox", name="Select all objects on this page for an action").check()
    page.get_by_role("combobox", name="Action").select_option(label="Reschedule for a group")
    page.get_by_role("button", name="Run").or_(page.get_by_role("button", name="Go", exact=True)).click()
    page.get_by_label("Group").select_option("mail")
    page.get_by_label("Delay").fill("60")
    page.get_by_role("button", name="Reschedule for a group").click()
    expect(page.get_by_text("due in 60 s: 1.")).to_be_visible()


def test_what_a_payload_says_is_shown_and_never_run(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    evil = shop.order(300, to=EVIL)[0]
    page = operator.open(f"/admin/sqlqueue/message/{evil}/change/")
    assert json.loads(page.get_by_label("Payload").inner_text()) == {"number": 300, "to": EVIL, "wish": EVIL}
    expect(page.locator("code", has_text=EVIL)).to_be_visible()  # its key
    for one in [page.url.removeprefix(operator.site), address("200"), LETTERS, *lists(operator)]:
        page = operator.open(one)
        assert page.evaluate("window.ran") is None, one
        assert not page.locator("img[src=x]").count(), one
