"""On every screen, wide or narrow, a column has its name, and what destroys looks like it."""

import pytest

from sqlqueue.models import ConsumerGroup, Message
from tests.browser.layout import WIDTHS
from tests.browser.shop import TOPIC, Shop
from tests.browser.tour import INDEX, LETTERS
from tests.browser.visiting import Visitor


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_has_its_name_beside_or_above_it(operator: Visitor, crowded: Shop, width: int) -> None:
    page = operator.page
    page.set_viewport_size({"width": width, "height": 844})
    operator.open(f"{INDEX}message/")
    row = page.locator("#result_list tbody tr").first
    shown = row.evaluate("""row => [...row.children].slice(1).map((cell) =>
        getComputedStyle(cell, '::before').content.replaceAll('"', ''))""")
    heads = page.locator("#result_list thead th:not(.action-checkbox-column)").all_inner_texts()
    names = ["Offset", "Topic", "Key and id", "Payload", "Status", "Created at"]
    assert [head.capitalize() for head in heads] == names
    assert shown == (names if width == 390 else ["none"] * 6)
    box = row.locator(".field-created_at").bounding_box()
    assert box is not None
    assert box["x"] + box["width"] <= width


@pytest.mark.parametrize("width", WIDTHS)
def test_what_destroys_looks_like_it_and_nothing_else_does(operator: Visitor, crowded: Shop, width: int) -> None:
    page = operator.page
    page.set_viewport_size({"width": width, "height": 844})
    letter = Message.objects.dead_letters("mail", TOPIC).values_list("offset", flat=True)[0]
    group = ConsumerGroup.objects.get(consumer_group="mail")
    red = {}
    for address in (
        LETTERS,
        f"{LETTERS}?topic={TOPIC}",
        f"{LETTERS}list/?topic={TOPIC}",
        f"{INDEX}message/{letter}/change/",
        f"{INDEX}message/{Message.objects.get(message_id='200').offset}/change/",
        f"{INDEX}consumergroup/{group.pk}/change/",
        f"{INDEX}consumergroup/{group.pk}/operation/remove/",
    ):
        operator.open(address)
        red |= page.evaluate("""() => {
            const probe = document.createElement('i')
            probe.style.background = 'var(--delete-button-bg)'
            document.body.append(probe)
            const danger = getComputedStyle(probe).backgroundColor
            const all = document.querySelectorAll('#content :is(input[type=submit], button, a.button)')
            return Object.fromEntries([...all].map((one) =>
                [(one.value || one.innerText).trim().split(':')[0], getComputedStyle(one).backgroundColor === danger]))
        }""")
    assert {name for name, is_red in red.items() if is_red} == {
        "Cancel for all groups",
        "Delete from the log",
        "Discard",
        "Discard dead letters",
        "Remove",
    }
    assert {"Replay", "Replay dead letters", "Pause", "Reschedule for a group"} <= {*red}
