"""A walk through all pages, as somebody takes it who has every permission."""

import re
from collections.abc import Iterator

from playwright.sync_api import Locator, Page

from sqlqueue.models import ConsumerGroup, Message
from tests.browser.shop import TOPIC
from tests.browser.visiting import Visitor

INDEX = "/admin/sqlqueue/"
LETTERS = f"{INDEX}message/dead-letters/"


def lists(visitor: Visitor) -> list[str]:
    """Return the addresses that the index leads to."""
    links = visitor.open(INDEX).locator("#content-main a[href^='/admin/sqlqueue/']")
    return sorted({*links.evaluate_all("all => all.map(link => link.getAttribute('href'))")} - {INDEX})


def tour(visitor: Visitor) -> Iterator[str]:
    """Go from page to page of a shop in trouble, and yield the name of each that is open."""
    page = visitor.page
    waiting = Message.objects.get(topic=TOPIC, message_id="200").offset
    letter = Message.objects.dead_letters("mail", TOPIC).values_list("offset", flat=True)[0]
    group = f"{INDEX}consumergroup/{ConsumerGroup.objects.get(consumer_group='mail').pk}"
    places = [
        *lists(visitor),
        INDEX,
        f"{INDEX}message/{waiting}/change/",
        f"{INDEX}message/{letter}/change/",
        LETTERS,
        f"{LETTERS}?topic={TOPIC}",
        f"{LETTERS}letters/?topic={TOPIC}",
        f"{INDEX}topic/{TOPIC}/change/",
        f"{group}/change/",
        f"{group}/replay/",
        f"{group}/replay/?offset=0&partition=&time=",
        f"{group}/replay/?offset=1&time=2020-01-01T00:00",
        f"{group}/delete/",
    ]
    for address in places:
        visitor.open(address)
        yield address
    for address, button in [(waiting, name) for name in orders(visitor, waiting)] + [
        (letter, name) for name in orders(visitor, letter)
    ]:
        visitor.open(f"{INDEX}message/{address}/change/")
        follow(order(page, button))
        yield f"{button}: the form"
        submit = order(page, button)
        if page.get_by_label("Reason").count():
            follow(submit)
            yield f"{button}: the form, refused"
    visitor.open(f"{INDEX}message/{letter}/change/")
    follow(order(page, "Replay dead letters"))
    follow(order(page, "Replay dead letters"))
    yield "a replay's progress"


def follow(target: Locator) -> None:
    """Click, and return when the next page is there."""
    with target.page.expect_navigation():
        target.click()


def order(page: Page, name: str) -> Locator:
    """The button of an order."""
    return page.get_by_role("button", name=re.compile(f"^{re.escape(name)}"))


def orders(visitor: Visitor, offset: int) -> list[str]:
    """What can be done with a message."""
    visitor.open(f"{INDEX}message/{offset}/change/")
    return visitor.page.locator("#content form[method=post] input[type=submit]").evaluate_all(
        "all => all.map(one => one.value)"
    )
