"""A group is paused, resumed, and moved back in the log."""

from playwright.sync_api import expect

from sqlqueue.models import ConsumerGroup
from tests.browser.shop import Shop
from tests.browser.visiting import Visitor
from tests.processes import wait_until


def test_a_paused_group_gets_nothing_until_it_is_resumed(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    shop.serve()
    page = operator.open("/admin/sqlqueue/consumergroup/")
    page.get_by_role("row", name="mail").get_by_role("link", name="mail").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused. Running handlers finish")).to_be_visible()
    assert ConsumerGroup.objects.get(consumer_group="mail").paused

    wait_until(lambda: shop.paused("mail"))
    before = len(shop.sent)
    shop.order(*range(300, 310))
    wait_until(lambda: set(shop.booked) >= set(range(300, 310)))
    assert len(shop.sent) == before
    page.reload()
    expect(page.get_by_text("No consumer reads for this group until it is resumed.")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    wait_until(lambda: sorted(shop.sent[before:]) == list(range(300, 310)))


def test_a_group_is_moved_back_after_a_dry_run_that_counts(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    first = shop.sent[:]
    page = operator.open("/admin/sqlqueue/consumergroup/")
    page.get_by_role("row", name="mail").get_by_role("link", name="mail").click()
    page.get_by_role("link", name="Rewind or skip").click()
    page.get_by_label("From offset").fill("0")
    page.get_by_role("button", name="Count what that would do").click()
    expect(page.get_by_role("listitem").filter(has_text="would be delivered again")).to_contain_text("25 messages")
    assert shop.sent == first
    page.get_by_role("button", name="Move the group to offset").click()
    expect(page.get_by_text("Moved to offset 0 in all partitions.")).to_be_visible()
    shop.mended = True
    shop.serve()
    wait_until(lambda: len(shop.sent) >= len(first) + 25)
    assert {*shop.sent[len(first) :]} == {*range(20), *range(100, 104), 200}
