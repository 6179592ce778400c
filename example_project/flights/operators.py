"""The site's first operator."""

from __future__ import annotations

import os
import secrets

from django.contrib.auth import get_user_model

USERNAME = "admin"


def first_operator() -> tuple[str, str] | None:
    """Create a superuser if there is none; return its name and password, or None if there was one.

    The password is DJANGO_SUPERUSER_PASSWORD of the environment, or a random one.
    """
    users = get_user_model().objects
    if users.filter(is_superuser=True).exists():
        return None
    password = os.environ.get("DJANGO_SUPERUSER_PASSWORD") or secrets.token_urlsafe(12)
    users.create_superuser(username=USERNAME, email="", password=password)
    return USERNAME, password
