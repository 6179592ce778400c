"""Somebody without a mouse logs in, finds what failed, and delivers it again."""

import re

from playwright.sync_api import Locator, Page, expect

from sqlqueue.models import ConsumerGroup, Message, Request
from tests.browser.conftest import Visit
from tests.browser.shop import TOPIC, Shop
from tests.browser.visiting import Visitor
from tests.processes import wait_until

MOST_STEPS = 200


def go_to(page: Page, target: Locator) -> None:
    """Press Tab until the target has the focus."""
    element = target.element_handle()
    for _ in range(MOST_STEPS):
        if element.evaluate("one => one === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{MOST_STEPS} steps with the Tab key do not lead to {target}")


def press(page: Page, target: Locator, key: str = "Enter") -> None:
    """Go to the target and press a key there."""
    go_to(page, target)
    page.keyboard.press(key)


def test_a_failure_is_replayed_with_the_keyboard_alone(visit: Visit, superuser: object, shop: Shop) -> None:
    shop.trouble()
    page = visit().open("/admin/sqlqueue/")
    go_to(page, page.get_by_label("Username"))
    page.keyboard.type("ada")
    go_to(page, page.get_by_label("Password"))
    page.keyboard.type("a password")
    page.keyboard.press("Enter")
    press(page, page.locator("#content").get_by_role("link", name="Messages", exact=True))
    press(page, page.locator("#content").get_by_role("link", name="Dead letters"))
    kind = page.get_by_role("row", name="no such place: Atlantis")
    press(page, kind.locator("summary"))
    expect(kind.locator("pre")).to_be_visible()
    press(page, kind.get_by_role("button", name="Replay dead letters"))
    press(page, page.get_by_label("First one as a trial"), "Space")
    go_to(page, page.get_by_label("Rate"))
    page.keyboard.type("50")
    press(page, page.get_by_role("button", name="Replay dead letters"))
    expect(page.get_by_text("Requested a replay of 4 dead letters")).to_be_visible()
    replay = Request.objects.get()
    assert (replay.options["trial"], replay.rate, replay.total, replay.ordered_by) == (False, 50.0, 4, "ada")
    shop.mended = True
    shop.serve()
    wait_until(lambda: Request.objects.get().done == 4)
    press(page, page.get_by_role("link", name="Refresh"))
    expect(page.get_by_text("4 of 4: done")).to_be_visible()
    assert not Message.objects.dead_letters("mail", TOPIC).exists()


def test_a_group_is_paused_from_the_list_and_resumed_on_its_page_with_the_keyboard_alone(
    operator: Visitor, shop: Shop
) -> None:
    shop.trouble()
    page = operator.open("/admin/sqlqueue/consumergroup/")
    press(page, page.get_by_role("row", name="mail").get_by_role("checkbox"), "Space")
    go_to(page, page.get_by_role("combobox", name="Action"))
    page.keyboard.type("Pause")
    press(page, page.get_by_role("button", name=re.compile("^(Go|Run)")))
    expect(page.get_by_text("paused. Running handlers finish")).to_be_visible()
    assert list(ConsumerGroup.objects.filter(paused=True).values_list("consumer_group", flat=True)) == ["mail"]
    press(page, page.get_by_role("row", name="mail").get_by_role("link", name="mail"))
    press(page, page.get_by_role("button", name="Resume"))
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert not ConsumerGroup.objects.filter(paused=True).exists()
