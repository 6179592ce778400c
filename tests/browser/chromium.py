"""The machine's own Chromium. Playwright drives it: it waits for what it is to click, and needs no driver of its own
(Selenium needs one of exactly the browser's version). Nothing is downloaded."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
START_TIMEOUT = 120_000  # ms: a machine that has other things to do


class NoBrowser(Exception):
    """This machine has no Chromium: as root on Debian, `apt-get install chromium`; or name it in CHROMIUM."""


def executable() -> str:
    """Return the path of the browser: what CHROMIUM of the environment names, or the first one on the PATH."""
    asked = os.environ.get("CHROMIUM")
    for name in (asked,) if asked else NAMES:
        if found := shutil.which(name):
            return found
    raise NoBrowser(f"{NoBrowser.__doc__} Looked for: {asked or ', '.join(NAMES)}")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless browser while the body runs."""
    # Playwright keeps an event loop in this thread, and Django's ORM takes that for asynchronous code.
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=executable(), timeout=START_TIMEOUT)
            yield browser
            browser.close()
    finally:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]
        if before is not None:
            os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = before
