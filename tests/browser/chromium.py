"""The machine's own Chromium. Playwright drives it: it waits for what it is to click, and needs no driver of its own
(Selenium needs one of exactly the browser's version). Nothing is downloaded."""

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from playwright.sync_api import Browser, Playwright, sync_playwright

from tests.servers.children import children_of

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_TIMEOUT = 120_000  # ms: a machine that has other things to do
CLOSES = 60.0  # seconds


class NoBrowser(Exception):
    """This machine has no Chromium: as root on Debian, `apt-get install chromium`; or name it in CHROMIUM."""


def executable() -> str:
    """Return the path of the browser: what CHROMIUM of the environment names, or the first one on the PATH."""
    asked = os.environ.get("CHROMIUM")
    for name in (asked,) if asked else NAMES:
        if found := shutil.which(name):
            return found
    raise NoBrowser(f"{NoBrowser.__doc__} Looked for: {asked or ', '.join(NAMES)}")


class Chromium:
    """A headless browser. One that was killed is followed by another."""

    def __init__(self, playwright: Playwright, driver: int):
        self._playwright, self.driver = playwright, driver
        self._browser: Browser | None = None

    @property
    def browser(self) -> Browser:
        """The browser, which is started if there is none."""
        if self._browser is None or not self._browser.is_connected():
            self._browser = self._playwright.chromium.launch(executable_path=executable(), timeout=START_TIMEOUT)
        return self._browser

    @contextmanager
    def killed_after(self, seconds: float) -> Iterator[None]:
        """Kill the browser if the body takes longer: Playwright waits for some answers without a limit. What waits for
        the browser then raises Playwright's error, which says what that was."""
        timer = threading.Timer(seconds, self.kill)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def kill(self) -> None:
        """Kill the browser's processes. From any thread."""
        for process in children_of(self.driver):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """End the browser."""
        if self._browser is not None:
            self._browser.close()


@contextmanager
def chromium() -> Iterator[Chromium]:
    """Drive a browser while the body runs."""
    # Playwright keeps an event loop in this thread, and Django's ORM takes that for asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    others = set(children_of(os.getpid()))
    try:
        with sync_playwright() as playwright:
            (driver,) = set(children_of(os.getpid())) - others
            driven = Chromium(playwright, driver)
            yield driven
            with driven.killed_after(CLOSES):
                driven.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
        if before is not None:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before
