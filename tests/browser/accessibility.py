"""What people need who see little, hear the page, or use no mouse."""

from collections.abc import Sequence

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

STANDARDS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
# Django's own: rule, and the elements that it is not held against.
DJANGOS = {
    "link-in-text-block": (".breadcrumbs a",),  # told from the text beside them by colour alone
}
AXE = Axe()

PARTS = 8  # stops within a field for date and time
INTERACTIVE = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']"
LOOK = ["outlineStyle", "color", "backgroundColor", "borderColor", "boxShadow", "textDecorationLine"]
# Tab goes on from here, wherever the focus was.
TO_THE_TOP = """() => {
    document.body.tabIndex = -1
    document.body.focus()
    document.body.removeAttribute('tabindex')
}"""
WATCH = """([selector, look]) => {
    const looks = (one) => look.map((name) => getComputedStyle(one)[name]).join()
    window.awaited = new Map()
    for (const one of document.querySelectorAll(`#content :is(${selector})`))
        if (one.checkVisibility({visibilityProperty: true}) && !one.disabled) window.awaited.set(one, looks(one))
    window.unseen = []
    document.addEventListener('focusin', ({target}) => {
        if (window.awaited.get(target) === looks(target)) window.unseen.push(target.outerHTML)
        window.awaited.delete(target)
    })
    return window.awaited.size
}"""


def violations(page: Page, only: Sequence[str] = STANDARDS, without: Sequence[str] = ()) -> list[str]:
    """Return what axe has against the page, an element a line, by rules and sets of rules."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.axe_script)
    page.evaluate("document.getAnimations().forEach((one) => one.finish())")  # colours change by degrees
    options = {
        "runOnly": list(only),
        "rules": {rule: {"enabled": False} for rule in without},
        "resultTypes": ["violations"],
    }
    found = page.evaluate("(options) => axe.run({exclude: '#nav-sidebar'}, options)", options)["violations"]
    return [
        f"{one['id']}: {node['html'][:300]} {node['failureSummary']}"
        for one in found
        for node in one["nodes"]
        if not is_djangos(page, one["id"], node["target"][0])
    ]


def is_djangos(page: Page, rule: str, element: str) -> bool:
    """Tell whether an element is of Django's own markup, and not held against it."""
    return any(page.locator(element).and_(page.locator(its)).count() for its in DJANGOS.get(rule, ()))


def out_of_reach(page: Page) -> list[str]:
    """Go through the page's content with the Tab key alone, from the link that skips what stands before it; return what
    cannot be reached that way, or does not show that it has the focus."""
    page.evaluate(TO_THE_TOP)
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    dates = page.locator("input[type=datetime-local]").count()
    for _ in range(page.evaluate(WATCH, [INTERACTIVE, LOOK]) + PARTS * dates):
        page.keyboard.press("Tab")
    missed = page.evaluate("[...window.awaited.keys()].map((one) => one.outerHTML)")
    return [f"never reached: {html[:300]}" for html in missed] + [
        f"focus not seen: {html[:300]}" for html in page.evaluate("window.unseen")
    ]
