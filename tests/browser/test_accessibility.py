"""Every page can be read and used by people who see little, hear the page, or use no mouse."""

from tests.browser.accessibility import out_of_reach, violations
from tests.browser.shop import Shop
from tests.browser.tour import tour
from tests.browser.visiting import Visitor


def told(found: dict[str, list[str]]) -> None:
    """Fail if anything was found, and say it all: each once, with the first page that has it."""
    first: dict[str, str] = {}
    for name, said in found.items():
        for one in said:
            first.setdefault(one, name)
    assert not first, "\n".join(f"{name}: {one}" for one, name in first.items())


def test_axe_has_nothing_against_any_page_by_day_or_by_night(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    shop.absent()
    found = {}
    for name in tour(operator):
        operator.page.emulate_media(color_scheme="light")
        found[name] = violations(operator.page)
        operator.page.emulate_media(color_scheme="dark")
        found[f"{name}, dark"] = violations(operator.page, "color-contrast")
    assert len(found) > 40
    told(found)


def test_everything_on_every_page_is_reached_with_the_tab_key_and_shows_it(operator: Visitor, shop: Shop) -> None:
    shop.trouble()
    shop.absent()
    found = {name: out_of_reach(operator.page) for name in tour(operator)}
    told(found)
