"""Who asks the endpoints: strangers and insiders."""

from typing import Any

from django.contrib.auth.models import Permission, User
from django.test import Client

from tests.consuming import QUICK

TOKEN = "a-token-of-24-characters"
TOPIC, GROUP = "secret-topic", "secret-group"
OPTIONS: dict[str, Any] = {**QUICK, "STATUS_TOKEN": TOKEN, "STATS_INTERVAL": 0}


def refuse_the_first(delivery) -> None:
    if delivery.payload == "first":
        raise ValueError("secret-error")


def bearing(token: str) -> Client:
    return Client(headers={"Authorization": f"Bearer {token}"})


def logged_in(name: str, *permissions: str, staff: bool = True) -> Client:
    """Return a client whose user has these permissions of the queue's app."""
    user = User.objects.create_user(name, password="x", is_staff=staff)
    for permission in permissions:
        user.user_permissions.add(Permission.objects.get(content_type__app_label="sqlqueue", codename=permission))
    client = Client()
    client.force_login(user)
    return client


def strangers() -> dict[str, Client]:
    """Everybody who may know nothing: by what they try."""
    return {
        "anonymous": Client(),
        "a wrong token": bearing(TOKEN + "x"),
        "part of the token": bearing(TOKEN[:-1]),
        "no token": bearing(""),
        "a token that is no ASCII": bearing("ä" * 24),
        "the token as a password": Client(headers={"Authorization": f"Basic {TOKEN}"}),
        "staff without permission": logged_in("staff"),
        "staff with another permission": logged_in("other", "view_message"),
        "a session that is none": _with_wrong_session(),
    }


def _with_wrong_session() -> Client:
    client = Client()
    client.cookies["sessionid"] = "x" * 32
    return client


def insiders() -> dict[str, Client]:
    """Everybody who may know everything."""
    return {
        "the token": bearing(TOKEN),
        "the permission": logged_in("viewer", "view_topic", staff=False),
    }
