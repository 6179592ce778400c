"""A browser for all tests, and for each test a site, and people who visit it."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth import get_user_model
from playwright.sync_api import Browser
from pytest_django.live_server_helper import LiveServer

from tests.browser.chromium import Chromium, chromium

if TYPE_CHECKING:
    from django.contrib.auth.models import User
    from pytest_django import Settings

    from tests.browser.shop import Shop
    from tests.browser.visiting import Visitor
    from tests.consuming import Consuming

Visit = Callable[..., "Visitor"]


KILLED_BEFORE = 60.0  # seconds before a test's time is over, which would end the whole run


@pytest.fixture(scope="session")
def driven() -> Iterator[Chromium]:
    with chromium() as driven:
        yield driven


@pytest.fixture(autouse=True)
def unhung(request: pytest.FixtureRequest, driven: Chromium) -> Iterator[None]:
    """Let a browser that does not answer fail the test that waits for it, and no other one."""
    marked = request.node.get_closest_marker("timeout")
    limit = float(marked.args[0] if marked else request.config.getini("timeout"))
    with driven.killed_after(limit - KILLED_BEFORE):
        yield


@pytest.fixture
def browser(driven: Chromium) -> Browser:
    return driven.browser


@pytest.fixture
def visit(
    request: pytest.FixtureRequest, browser: Browser, live_server: LiveServer, consuming: "Consuming"
) -> Iterator[Visit]:
    """Return a function that opens the browser as a user. No script may fail in any page that the user sees.

    They leave before the test's consumers are ended and its database is emptied.
    """
    from tests.browser.visiting import Visitor  # the apps are ready only now

    visitors: list[Visitor] = []

    def visit(user: "User | None" = None, dark: bool = False) -> Visitor:
        visitors.append(Visitor(browser, live_server.url, user, dark))
        return visitors[-1]

    failed_before = request.session.testsfailed
    yield visit
    for number, visitor in enumerate(visitors if browser.is_connected() else ()):
        if request.session.testsfailed > failed_before:
            visitor.photograph(f"{request.node.name} {number}")
        visitor.context.close()
    faults = [fault for visitor in visitors for fault in visitor.faults]
    assert not faults, faults


@pytest.fixture
def superuser(transactional_db: None) -> "User":
    return get_user_model().objects.create_superuser("ada", "", "a password")


@pytest.fixture
def staff(transactional_db: None) -> Callable[..., "User"]:
    """Return a function that makes a user who may enter the admin, with these of the queue's permissions."""
    from django.contrib.auth.models import Permission

    def staff(*codenames: str) -> "User":
        user = get_user_model().objects.create_user("bob", "", "a password", is_staff=True)
        user.user_permissions.set(
            Permission.objects.filter(content_type__app_label__startswith="sqlqueue", codename__in=codenames)
        )
        return user

    return staff


@pytest.fixture
def operator(visit: Visit, superuser: "User") -> "Visitor":
    """A superuser who has logged in."""
    return visit(superuser)


@pytest.fixture
def shop(consuming: "Consuming", settings: "Settings") -> "Shop":
    """A shop that has not sold anything yet."""
    from tests.browser.shop import Shop

    settings.SQLQUEUE = {**settings.SQLQUEUE, "HEARTBEAT_INTERVAL": 0.5}  # rescheduled messages are noticed with it
    return Shop(consuming)


@pytest.fixture
def crowded(shop: "Shop") -> "Shop":
    """The shop in trouble, with names, keys and ids as long as they come."""
    shop.crowd()
    return shop
