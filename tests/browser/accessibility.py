"""What people need who see little, hear the page, or use no mouse, as axe judges it."""

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

STANDARDS = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"],
    "resultTypes": ["violations"],
}
# Django's own: rule, and the elements that it is not held against.
DJANGOS = {
    "link-in-text-block": (".breadcrumbs a",),  # told from the text beside them by colour alone
}
AXE = Axe()


def violations(page: Page) -> list[str]:
    """Return what axe has against the page, an element a line."""
    found = AXE.run(page, options=STANDARDS).response["violations"]
    return [
        f"{one['id']}: {node['html'][:200]} ({one['help']})"
        for one in found
        for node in one["nodes"]
        if not any(
            page.locator(node["target"][0]).and_(page.locator(its)).count() for its in DJANGOS.get(one["id"], ())
        )
    ]
