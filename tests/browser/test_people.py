"""A whole case: a handler passes a refund on, one person works on it, another one reviews it, and it is paid."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pytest
from django.contrib.auth.models import Group, User
from playwright.sync_api import Page, expect

from sqlqueue import HandOver, publish
from sqlqueue.contrib.people import topics, work_on
from sqlqueue.contrib.people.models import WorkItem, WorkItemEvent
from tests.browser.conftest import Visit
from tests.browser.tour import follow
from tests.consuming import Consuming

if TYPE_CHECKING:
    from collections.abc import Callable

MINE = "/admin/sqlqueue_people/mywork/"


@dataclass
class Decision:
    number: str
    amount: float
    how: Literal["bank", "card"]
    approved: bool = False


@pytest.fixture
def paid(consuming: Consuming, settings: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What has been decided, as the handler of decisions gets it."""
    topics.topics()
    monkeypatch.setattr(topics, "declared", {})
    work_on("refunds", decisions="decided", teams=["accounting"])
    settings.SQLQUEUE = {**settings.SQLQUEUE, "TOPICS": {"refunds": {}, "decided": {"payload_type": Decision}}}
    found: list[dict[str, Any]] = []

    def refund(delivery: Any) -> None:
        raise HandOver("amount over 500", form={"amount": 500})

    consuming.consumer("refunds", refund)
    consuming.consumer("decided", lambda delivery: found.append({**vars(delivery.payload), **delivery.headers}))
    return found


def press(page: Page, name: str) -> None:
    follow(page.get_by_role("button", name=name, exact=True))


def test_a_case_from_its_message_to_its_decision(
    visit: Visit,
    superuser: User,
    staff: "Callable[..., User]",
    consuming: Consuming,
    paid: list[dict[str, Any]],
) -> None:
    bob = staff("work_on_workitem")
    bob.groups.add(Group.objects.create(name="accounting"))
    publish("refunds", {"number": "r-7", "amount": 700}, key="ann", id="r-7")
    consuming.drain()
    item = WorkItem.objects.get()

    work = visit(bob).open("/admin/")
    follow(work.locator("#content-main").get_by_role("link", name="My work"))
    follow(work.get_by_role("region", name="Unassigned").get_by_role("link", name=str(item)))
    press(work, "Assign to me")
    expect(work.get_by_text("It is yours now.")).to_be_visible()
    assert work.get_by_label("amount:", exact=True).input_value() == "500"
    assert work.get_by_label("number:", exact=True).input_value() == "r-7"
    work.get_by_label("amount:", exact=True).fill("650")
    work.get_by_label("how:", exact=True).select_option("bank")
    work.get_by_label("approved").check()
    work.get_by_label("Reviewer").fill("ada")
    work.get_by_role("region", name="Decide").get_by_label("Comment").fill("she has waited for long")
    press(work, "Ask for a review")

    review = visit(superuser).open(MINE)
    follow(review.get_by_role("region", name="My items").get_by_role("link", name=str(item)))
    expect(review.get_by_text("she has waited for long")).to_be_visible()
    press(review, "Send back")
    expect(review.get_by_text("say in a comment why it is sent back")).to_be_visible()
    review.get_by_role("region", name="Review").get_by_label("Comment").fill("no more than 600")
    press(review, "Send back")

    work.reload()
    expect(work.get_by_text("no more than 600")).to_be_visible()
    assert work.get_by_label("amount:", exact=True).input_value() == "650.0"
    work.get_by_label("amount:", exact=True).fill("600")
    press(work, "Ask for a review")

    review.reload()
    press(review, "Assign to me")
    press(review, "Approve")
    expect(review.get_by_text("It is approved, and done.")).to_be_visible()
    expect(review.get_by_role("button", name="Approve")).to_have_count(0)

    consuming.drain()
    (decision,) = paid
    about = decision.pop("work_item")
    assert decision == {"number": "r-7", "amount": 600.0, "how": "bank", "approved": True}
    assert (about["message_id"], about["author"], about["decided_by"]) == ("r-7", "bob", "ada")
    kinds = WorkItemEvent.objects.order_by("pk").values_list("kind", "made_by")
    assert list(kinds) == [
        ("assigned", "bob"),
        ("submitted", "bob"),
        ("sent back", "ada"),
        ("submitted", "bob"),
        ("assigned", "ada"),
        ("approved", "ada"),
    ]
