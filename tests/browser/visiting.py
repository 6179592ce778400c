"""Somebody at a browser."""

import re
from pathlib import Path

from django.conf import settings
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

PATIENCE = 60_000  # ms: what a page, or something on it, may take on a slow machine
STILL = "localStorage.getItem('sqlqueue.refresh') ?? localStorage.setItem('sqlqueue.refresh', 'off')"
SEEN = Path(__file__).resolve().parents[2] / "var" / "browser"
expect.set_options(timeout=PATIENCE)


class Visitor:
    """Opens pages of the site, and remembers which scripts and requests failed there."""

    def __init__(self, browser: Browser, site: str, user: User | None, dark: bool) -> None:
        self.site = site
        self.context = browser.new_context(color_scheme="dark" if dark else "light", reduced_motion="reduce")
        self.context.set_default_timeout(PATIENCE)
        self.context.add_init_script(STILL)  # no page changes under a test's hands
        if user:
            client = Client()
            client.force_login(user)
            name = settings.SESSION_COOKIE_NAME
            self.context.add_cookies([{"name": name, "value": client.cookies[name].value, "url": site}])
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("pageerror", lambda error: self.faults.append(f"script: {error}"))
        self.page.on("console", self._hear)

    def open(self, address: str) -> Page:
        """Open a page by its path, and return it when it has loaded."""
        self.page.goto(self.site + address)
        return self.page

    def photograph(self, name: str) -> None:
        """Keep what the page looks like, in var/browser."""
        SEEN.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SEEN / f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}.png", full_page=True)

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type == "error" and not said.location["url"].endswith("/favicon.ico"):  # the tests' site has none
            self.faults.append(f"console: {said.text} {said.location['url']}")
