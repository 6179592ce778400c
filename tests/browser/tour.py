"""A walk through all pages, by a user with every permission."""

import re
from collections.abc import Iterator
from urllib.parse import quote

from django.utils import timezone
from playwright.sync_api import Locator, Page

from sqlqueue.contrib.people.models import COMMENTED, DONE, OPEN, REVIEW, WorkItem, WorkItemEvent
from sqlqueue.log.schedule import move_due
from sqlqueue.models import ConsumerGroup, Message, ScheduledMessage
from sqlqueue.operations.reschedule_requests import WaitingDeliveries, request_rescheduling
from tests.browser.shop import LONG_ID, LONG_KEY, TOPIC
from tests.browser.visiting import Visitor
from tests.logs import LOG

INDEX = "/admin/sqlqueue/"
PEOPLE = "/admin/sqlqueue_people/"
BATCHES = "/admin/sqlqueue_batches/"
LETTERS = f"{INDEX}deadletter/"


def lists(visitor: Visitor) -> list[str]:
    """Return the addresses that the indexes lead to."""
    found: set[str] = set()
    for address in (INDEX, PEOPLE, BATCHES):
        links = visitor.open(address).locator("#content-main a[href^='/admin/sqlqueue']")
        found |= {*links.evaluate_all("all => all.map(link => link.getAttribute('href'))")}
    return sorted(found - {INDEX, PEOPLE, BATCHES})


def by_hand() -> list[str]:
    """Give the pages of what is done by hand something to show, and return their addresses: as they are opened, when
    they have counted, and with a value that is refused."""
    key = Message.objects.get(topic=TOPIC, message_id="200").partition_key
    rescheduling = request_rescheduling(LOG, WaitingDeliveries(TOPIC, "mail", error="reached", key=key), rate=0.5)
    ScheduledMessage.objects.create(topic=TOPIC, payload={"number": 900}, priority=9)
    move_due(LOG)
    group = ConsumerGroup.objects.get(consumer_group="mail")
    many = f"{INDEX}consumergroup/{group.pk}/operation/reschedule/"
    purge = f"{INDEX}topic/{TOPIC}/operation/purge/"
    cases = [work_item(state) for state in (OPEN, REVIEW, DONE)]
    return [
        *(f"{PEOPLE}workitem/{case.pk}/change/" for case in cases),
        *(f"{INDEX}scheduledmessage/{scheduled.pk}/change/" for scheduled in ScheduledMessage.objects.all()),
        purge,
        f"{purge}?count=1&unsettled=on",
        f"{purge}?count=1&time=soon",
        many,
        f"{many}?delay=0&key={quote(key)}&count=1",
        f"{many}?delay=-1&count=1",
        f"{INDEX}request/{rescheduling.pk}/change/",
    ]


def work_item(state: str) -> WorkItem:
    """Let people have a case in this state, with texts as long as they come."""
    case = WorkItem.objects.create(
        topic=TOPIC,
        partition_key=LONG_KEY,
        message_id=LONG_ID,
        message_offset=WorkItem.objects.count(),
        consumer_group="mail",
        fencing_token=1,
        attempts=1,
        payload={"text": "word " * 60, "n": "9" * 120},
        form={"n": 1},
        published_at=timezone.now(),
        due_at=timezone.now(),
        reason="the amount is over what a handler may pay, " * 4 + "x" * 120,
        state=state,
        author="zoe" if state == REVIEW else "",
        result={"n": 2} if state != OPEN else None,
    )
    WorkItemEvent.objects.create(
        item=case, kind=COMMENTED, made_by="b" * 150, comment="y" * 150, result={"n": "9" * 120}
    )
    return case


def tour(visitor: Visitor) -> Iterator[str]:
    """Go from page to page of a shop in trouble, and yield the name of each that is open."""
    page = visitor.page
    waiting = Message.objects.get(topic=TOPIC, message_id="200").offset
    letter = Message.objects.dead_letters("mail", TOPIC).values_list("offset", flat=True)[0]
    group = f"{INDEX}consumergroup/{ConsumerGroup.objects.get(consumer_group='mail').pk}"
    done_by_hand = by_hand()  # first: the lists show it
    places = [
        *lists(visitor),
        *done_by_hand,
        INDEX,
        f"{INDEX}message/{waiting}/change/",
        f"{INDEX}message/{letter}/change/",
        LETTERS,
        f"{LETTERS}?topic={TOPIC}",
        f"{LETTERS}list/?topic={TOPIC}",
        f"{INDEX}topic/{TOPIC}/change/",
        f"{INDEX}topic/{TOPIC}/operation/options/",
        f"{group}/change/",
        f"{group}/operation/move/",
        f"{group}/operation/move/?count=1&offset=0&partition=&time=",
        f"{group}/operation/move/?count=1&offset=1&time=2020-01-01T00:00",
        f"{group}/operation/remove/",
    ]
    for address in places:
        visitor.open(address)
        yield address
    for address, button in [(waiting, name) for name in orders(visitor, waiting)] + [
        (letter, name) for name in orders(visitor, letter)
    ]:
        visitor.open(f"{INDEX}message/{address}/change/")
        follow(page.get_by_role("link", name=button, exact=True))
        yield f"{button}: the form"
        submit = action_button(page, button)
        if page.get_by_label("Reason").count():
            follow(submit)
            yield f"{button}: the form, refused"
    visitor.open(f"{INDEX}message/{letter}/change/")
    follow(page.get_by_role("link", name="Replay dead letters", exact=True))
    follow(action_button(page, "Replay dead letters"))
    yield "a replay's progress"


def message_page(visitor: Visitor, key: str) -> Iterator[str]:
    """Go to the page of the first message whose key begins so."""
    for message in Message.objects.filter(partition_key__startswith=key)[:1]:
        visitor.open(address := f"{INDEX}message/{message.offset}/change/")
        yield address


def follow(target: Locator) -> None:
    """Click, and return when the next page is there."""
    with target.page.expect_navigation():
        target.click()


def action_button(page: Page, name: str) -> Locator:
    """Return the button of an action."""
    return page.get_by_role("button", name=re.compile(f"^{re.escape(name)}"))


def orders(visitor: Visitor, offset: int) -> list[str]:
    """What can be done with a message."""
    visitor.open(f"{INDEX}message/{offset}/change/")
    return visitor.page.locator("#content .sqlqueue-buttons a.button").all_inner_texts()
