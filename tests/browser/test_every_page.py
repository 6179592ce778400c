"""Every page serves everybody on every screen: people who see little, hear the page, or use no mouse, by day and by
night, on a wide screen and a narrow one.

One walk through all pages, for it takes longer than the looks at them.
"""

import re
from itertools import chain

import pytest
from playwright.sync_api import Page

from sqlqueue import publish
from tests.browser.accessibility import out_of_reach, violations
from tests.browser.layout import WIDTHS, broken_words, sideways
from tests.browser.shop import LONG_KEY, TOPIC, Shop
from tests.browser.tour import message_page, tour
from tests.browser.visiting import Visitor

MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{3})? UTC")
# Any other way to write a time: 14:05, 2:05 p.m., a year.
TIME = re.compile(r"\b\d{1,2}:\d\d\b|\b[ap]\.m\.|\b20\d\d\b")


def looks(page: Page) -> list[str]:
    """Return what axe has against the page in both colour schemes, and what the Tab key does not reach."""
    page.emulate_media(color_scheme="light")
    by_day = violations(page)
    page.emulate_media(color_scheme="dark")
    by_night = violations(page, only=["color-contrast"])
    return [*by_day, *(f"dark: {one}" for one in by_night), *out_of_reach(page)]


def looks_when_narrow(page: Page) -> list[str]:
    """Return what axe has against the page there, but for colours, which are the same at every width."""
    return violations(page, without=["color-contrast"])


def layout(page: Page) -> list[str]:
    """Return what does not fit when all is unfolded, and times that are not written as all others."""
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    text = page.evaluate("document.querySelector('#content').innerText")
    odd = TIME.findall(MOMENT.sub("", text.replace(LONG_KEY, "")))
    return [
        *sideways(page),
        *(f"broken: {one}" for one in broken_words(page)),
        *(f"another way to write a time: {one}" for one in odd),
    ]


def told(found: dict[str, list[str]]) -> None:
    """Fail if anything was found, and say it all: each once, with the first page that has it."""
    first: dict[str, str] = {}
    for name, said in found.items():
        for one in said:
            first.setdefault(one, name)
    assert not first, "\n".join(f"{name}: {one}" for one, name in first.items())


@pytest.mark.timeout(900)  # of a walk through everything
def test_every_page_serves_everybody_on_every_screen(operator: Visitor, crowded: Shop) -> None:
    publish(TOPIC, 1, delay=3600)
    page, found, moments = operator.page, {}, 0
    for name in chain(tour(operator), message_page(operator, LONG_KEY)):
        for width, look in zip(WIDTHS, (looks, looks_when_narrow)):
            page.set_viewport_size({"width": width, "height": 844})
            found[f"{name} at {width}"] = look(page)
        for width in reversed(WIDTHS):
            page.set_viewport_size({"width": width, "height": 844})
            found[f"{name} at {width}, unfolded"] = layout(page)
        moments += len(MOMENT.findall(page.inner_text("#content")))
    assert len(found) > 4 * 25
    assert moments > 50
    told(found)


@pytest.mark.long
def test_a_narrow_page_is_reached_with_the_tab_key_as_well(operator: Visitor, crowded: Shop) -> None:
    page = operator.page
    page.set_viewport_size({"width": WIDTHS[-1], "height": 844})
    told({name: out_of_reach(page) for name in tour(operator)})
