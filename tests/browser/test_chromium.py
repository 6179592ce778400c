"""A browser that hangs fails the test that waits for it, and no other one."""

import os
import signal
from contextlib import suppress

import pytest
from playwright.sync_api import Error

from tests.browser.chromium import Chromium
from tests.servers.children import children_of


def test_one_that_stands_still_is_killed_and_another_one_follows(driven: Chromium) -> None:
    former = driven.browser
    page = former.new_page()
    processes = list(children_of(driven.driver))
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        with driven.killed_after(1.0), pytest.raises(Error, match="closed"):
            page.evaluate("1 + 1")  # waits for ever
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
    assert not former.is_connected()
    assert driven.browser.new_page().evaluate("1 + 1") == 2
