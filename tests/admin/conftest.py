"""Users who may do one thing each, and what they look at."""

from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client


@pytest.fixture
def staff(db: None) -> Callable[..., Client]:
    """Return a client of a staff user with these permissions of the queue, and no other; CSRF is checked if asked."""

    from django.contrib.auth.models import Permission, User  # the apps are ready only now

    def logged_in(*codenames: str, csrf: bool = False) -> Client:
        user = User.objects.create_user(f"staff-{User.objects.count()}", is_staff=True)
        found = list(Permission.objects.filter(content_type__app_label__startswith="sqlqueue", codename__in=codenames))
        assert {one.codename for one in found} == set(codenames)
        user.user_permissions.set(found)
        client = Client(enforce_csrf_checks=csrf)
        client.force_login(user)
        return client

    return logged_in


@pytest.fixture
def stage(consuming: Any) -> Any:
    """A topic with messages that were read, fail, and died."""
    from tests.admin.stage import Stage

    return Stage(consuming)
