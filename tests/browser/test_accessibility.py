"""Contrast, labels, headings and landmarks of every main page, by day and by night, as axe judges them."""

import pytest
from django.contrib.auth.models import User

from tests.browser.accessibility import violations
from tests.browser.conftest import Visit

PAGES = ["/admin/", "/admin/sqlqueue/"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_has_nothing_against_the_pages(visit: Visit, superuser: User, dark: bool) -> None:
    visitor = visit(superuser, dark)
    found = {address: violations(visitor.open(address)) for address in PAGES}
    assert not {address: said for address, said in found.items() if said}
