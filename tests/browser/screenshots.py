"""The pictures in the documentation: the example project's admin with real flights, real consumers and some trouble.

python -m tests.browser.screenshots FOLDER MINUTES
"""

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page

from tests.browser.chromium import chromium
from tests.processes import ROOT, wait_until

TICK = 10.0  # seconds between two departures' bulletins
FLIGHTS = 400  # in each
PAUSED = 0.6  # the part of the time after which a group is paused
LOG = ROOT / "var" / "screenshots.log"
USER = "admin"
MOST = 200_000  # bytes of a picture
WIDTH, HIGHEST = 1180, 900  # pixels
ROOT_SHOWN = "/srv/flights"  # in the pictures' tracebacks, wherever they were made
RENAME = """([from, to]) => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
    while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(from, to)
}"""
PATIENCE = 120_000  # ms


class Site:
    """The example project in a folder of its own, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.password, self.published = f"http://127.0.0.1:{port}", secrets.token_hex(8), 0
        own = {"VAR_DIR": str(folder), "PORT": str(port), "DJANGO_SUPERUSER_PASSWORD": self.password}
        left_out = ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "DEBUG")
        kept = {name: value for name, value in os.environ.items() if name not in left_out}
        self._environment = {**kept, **own}

    @contextmanager
    def open(self) -> Iterator[None]:
        """Run `manage.py site` while the body runs."""
        self.manage("migrate", "--verbosity=0")
        LOG.parent.mkdir(exist_ok=True)
        with LOG.open("w") as log:
            site = subprocess.Popen(self._command("site"), cwd=ROOT, env=self._environment, stdout=log, stderr=log)
        try:
            yield
        finally:
            site.terminate()
            site.wait()

    def publish(self, flights: int) -> None:
        """Publish so many more flights."""
        self.published += flights
        self.manage("publishflights", f"--flights={self.published}")

    def manage(self, *words: str) -> None:
        """Run a command to its end."""
        subprocess.run(self._command(*words), cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, check=True)

    def _command(self, *words: str) -> list[str]:
        return [sys.executable, str(ROOT / "manage.py"), *words]


class Photographer:
    """Walks through the admin and keeps what it sees."""

    def __init__(self, browser: Browser, site: Site, folder: Path, dark: bool = False) -> None:
        self._site, self._folder = site, folder
        context = browser.new_context(
            viewport={"width": WIDTH, "height": 640}, color_scheme="dark" if dark else "light"
        )
        context.set_default_timeout(PATIENCE)
        context.add_init_script("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
        context.add_init_script("localStorage.setItem('sqlqueue.refresh', 'off')")  # nothing moves in a picture
        self.page = context.new_page()
        wait_until(self._enter, timeout=PATIENCE / 1000)

    def picture(self, name: str, address: str = "") -> Page:
        """Keep what the page at this address, or the present one, looks like."""
        if address:
            self.page.goto(self._site.url + address)
        self.page.evaluate(RENAME, [str(ROOT), ROOT_SHOWN])
        file = self._folder / f"{name}.png"
        shot = Image.open(BytesIO(self.page.screenshot(full_page=True, animations="disabled")))
        shot = shot.crop((0, 0, WIDTH, min(HIGHEST, shot.height)))
        shot.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(file, optimize=True)
        print(f"{file}: {file.stat().st_size:,} bytes")
        assert file.stat().st_size < MOST, f"{file} is too large for the documentation"
        return self.page

    def _enter(self) -> bool:
        try:
            self.page.goto(f"{self._site.url}/admin/")
        except Exception:  # not open yet
            return False
        self.page.get_by_label("Username").fill(USER)
        self.page.get_by_label("Password").fill(self._site.password)
        self.page.get_by_role("button", name="Log in").click()
        self.page.get_by_role("heading", name="Site administration").wait_for()
        return True


def live_through(site: Site, seconds: float) -> None:
    """Publish flights all the time. Late on, the aircraft's group is paused, and its backlog grows."""
    began, paused = time.monotonic(), False
    while (gone := time.monotonic() - began) < seconds:
        if not paused and gone > PAUSED * seconds:
            site.manage("queuepause", "flights", "--group=aircraft")
            paused = True
        site.publish(FLIGHTS)
        time.sleep(max(0.0, TICK - (time.monotonic() - began - gone)))


def take_pictures(browser: Browser, site: Site, folder: Path) -> None:
    """Look at everything that the documentation shows."""
    queue = "/admin/sqlqueue"
    overview = f"{queue}/overview/?hours=1"
    day, night = Photographer(browser, site, folder), Photographer(browser, site, folder, dark=True)
    day.picture("overview", overview)
    night.picture("overview-dark", overview)
    page = day.page
    page.get_by_role("row", name="aircraft").get_by_role("link").first.click()
    page.get_by_role("link", name="1 hour").click()
    day.picture("group")
    page.get_by_role("button", name="Resume").click()
    page.get_by_text("resumed.").wait_for()

    day.picture("messages", f"{queue}/message/?topic=flights")
    day.picture("dead-letters", f"{queue}/deadletter/?topic=flights&group=alerts")
    page.get_by_role("row", name="NeverDeparted").locator("summary a, th a").first.click()
    page.get_by_role("table").get_by_role("link").first.click()
    day.picture("dead-letter")
    page.goto(f"{site.url}{queue}/deadletter/?topic=flights&group=alerts")
    page.get_by_role("row", name="NeverDeparted").get_by_role("button", name="Replay").click()
    page.get_by_label("Rate").fill("2")
    day.picture("replay-form")
    page.get_by_label("First one as a trial").uncheck()  # it would fail again: the handler is not mended
    page.get_by_role("button", name="Replay dead letters").click()
    page.get_by_role("progressbar").wait_for()
    replay = page.url.removeprefix(site.url)
    bar = page.get_by_role("progressbar")
    wait_until(lambda: page.goto(site.url + replay) and float(bar.get_attribute("value") or 0) >= 10)
    day.picture("replay", replay)


def main(folder: Path, minutes: float) -> None:
    """Make all pictures; minutes: how long the site runs before, so that its charts have something to show."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, chromium() as driven:
        site = Site(Path(place))
        with site.open():
            live_through(site, minutes * 60)
            take_pictures(driven.browser, site, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
