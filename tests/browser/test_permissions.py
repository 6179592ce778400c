"""Who may only look is offered nothing else, and refused if they try all the same."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import expect

from sqlqueue.models import ConsumerGroup, Message
from tests.browser.conftest import Visit
from tests.browser.shop import TOPIC, Shop
from tests.browser.visiting import Visitor

VIEWS = ("view_message", "view_consumergroup", "view_topic", "view_request", "view_overview")


@pytest.fixture
def pages(shop: Shop) -> list[str]:
    """Pages that have buttons for users with a permission."""
    shop.trouble()
    letter = Message.objects.dead_letters("mail", TOPIC).first()
    waiting = Message.objects.get(topic=TOPIC, message_id="200")
    group = ConsumerGroup.objects.get(consumer_group="mail")
    assert letter
    return [
        f"/admin/sqlqueue/message/{waiting.offset}/change/",
        f"/admin/sqlqueue/message/{letter.offset}/change/",
        "/admin/sqlqueue/deadletter/",
        f"/admin/sqlqueue/deadletter/list/?topic={TOPIC}",
        f"/admin/sqlqueue/consumergroup/{group.pk}/change/",
        f"/admin/sqlqueue/topic/{TOPIC}/change/",
    ]


def buttons(visitor: Visitor) -> list[str]:
    """What the page offers to do, but for looking and leaving."""
    main = visitor.page.locator("#content")
    posts = main.locator("form[method=post]").locator("button, input[type=submit]")
    links = main.locator("a.button")
    return [*posts.evaluate_all("all => all.map(one => one.value || one.innerText)"), *links.all_inner_texts()]


def test_only_who_may_act_sees_buttons(
    visit: Visit, superuser: User, staff: Callable[..., User], pages: list[str]
) -> None:
    operator, guest = visit(superuser), visit(staff(*VIEWS))
    for address in pages:
        operator.open(address)
        assert buttons(operator), address
        guest.open(address)
        expect(guest.page.get_by_role("heading", level=1)).not_to_have_text("403 Forbidden")
        assert not buttons(guest), address


def test_who_borrows_a_button_is_refused(
    visit: Visit, superuser: User, staff: Callable[..., User], pages: list[str]
) -> None:
    operator, guest = visit(superuser), visit(staff(*VIEWS))
    for address in pages:
        operator.open(address)
        borrowed = operator.page.locator("#content").evaluate(
            "main => [...main.querySelectorAll('form[method=post]'), ...main.querySelectorAll('a.button')]"
            ".map(one => new URL(one.getAttribute('action') || one.getAttribute('href') || '', location).href)"
        )
        for action in {*borrowed} - {operator.page.url}:
            guest.open("/admin/")
            token = guest.context.cookies(guest.site)
            csrf = next((cookie["value"] for cookie in token if cookie["name"] == "csrftoken"), "")
            answer = guest.context.request.post(
                action, form={"csrfmiddlewaretoken": csrf, "confirmed": "1"}, headers={"Referer": guest.site}
            )
            assert answer.status == 403, (action, answer.status)


def test_strangers_are_asked_who_they_are(visit: Visit, pages: list[str]) -> None:
    stranger = visit()
    for address in pages:
        stranger.open(address)
        expect(stranger.page.get_by_label("Password")).to_be_visible()
