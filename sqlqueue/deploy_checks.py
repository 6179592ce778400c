"""System checks of a deployment: what is readable without a login, and whether consumers on other hosts are woken.

`check --deploy` checks settings and URLs; with `check --database`, W042 checks the heartbeats.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Sequence
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError
from django.db import connections
from django.urls import URLPattern, URLResolver, get_resolver

from sqlqueue.checks import TAG
from sqlqueue.conf import settings
from sqlqueue.database.log import current_log
from sqlqueue.models import SubscriberHeartbeat

EXPORTER = ("django_prometheus.exports", "ExportToDjangoView")
LOGIN_REQUIRED = "django.contrib.auth.middleware.LoginRequiredMiddleware"
EXAMPLE = "change-me-to-something-long"  # the documentation's token
FEWEST_CHARACTERS = 5  # different ones of a token, as Django wants of SECRET_KEY
WAKE_HINT = (
    "Give SQLQUEUE['WAKE_ADDRESS'] an address of each host that the others can reach, or set WAKE to False and let "
    "consumers poll. Where all of it runs on one host, silence this check."
)


@register(TAG, deploy=True)
def check_exposure(**kwargs: Any) -> list[CheckMessage]:
    """W040: the site answers /metrics without a login; W041: a STATUS_TOKEN that can be guessed. Runs with
    `--deploy`."""
    if settings.problems():
        return []
    found: list[CheckMessage] = []
    # Django asks the same: a project of consumers alone needs no URLs.
    readable = getattr(django_settings, "ROOT_URLCONF", None) and LOGIN_REQUIRED not in django_settings.MIDDLEWARE
    for path in _exporters(get_resolver().url_patterns) if readable else ():
        text = (
            f"/{path} tells everyone who reaches it the names and figures of topics and groups: metrics know no login"
        )
        hint = "Let only Prometheus reach it, by the web server or the network, and silence this check then."
        found.append(Caution(text, hint=hint, id="sqlqueue.W040"))
    token = settings.STATUS_TOKEN
    if token and (token == EXAMPLE or len(set(token)) < FEWEST_CHARACTERS):
        text = "SQLQUEUE['STATUS_TOKEN'], which opens health and status in detail, can be guessed"
        hint = "Make one: python -c 'import secrets; print(secrets.token_urlsafe())'"
        found.append(Caution(text, hint=hint, id="sqlqueue.W041"))
    return found


@register(TAG, deploy=True)
def check_wake_address(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W042: the database is on another host, so that consumers may be, too, and they listen on a loopback address. Runs
    with `--deploy`, unless `--database` checks the heartbeats."""
    if settings.problems() or settings.DATABASE in (databases or ()):
        return []
    host = str(connections.settings[settings.DATABASE].get("HOST") or "")
    if not settings.WAKE or _is_local(host) or not _is_loopback(settings.WAKE_ADDRESS):
        return []
    text = (
        f"the queue's database is on another host ({host}), and consumers listen on {settings.WAKE_ADDRESS}: a "
        "publisher on another host, or in another container, does not wake them"
    )
    return [Caution(text, hint=WAKE_HINT, id="sqlqueue.W042")]


@register(TAG, Tags.database)
def check_heartbeats(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W042: consumer processes on several hosts listen on loopback addresses. Runs with `check --database`."""
    if not databases or settings.problems() or settings.DATABASE not in databases:
        return []
    try:
        beats = SubscriberHeartbeat.objects.using(current_log().alias).alive().exclude(address="")
        addresses = set(beats.values_list("host", "address"))
    except DatabaseError:  # E008, or the tables are not there yet
        return []
    hosts = {host for host, _ in addresses}
    loopback = sorted({host for host, address in addresses if _is_loopback(address.rpartition(":")[0])})
    if len(hosts) < 2 or not loopback:
        return []
    text = (
        f"consumers run on {len(hosts)} hosts, and those on {', '.join(loopback[:5])} listen on a loopback address: "
        "what is published on another host does not wake them"
    )
    return [Caution(text, hint=WAKE_HINT, id="sqlqueue.W042")]


def _exporters(patterns: Sequence[Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of django-prometheus's view where no decorator protects it."""
    for pattern in patterns:
        path = f"{prefix}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _exporters(pattern.url_patterns, path)
        elif isinstance(pattern, URLPattern) and _is_exporter(pattern.callback):
            yield path


def _is_exporter(view: Any) -> bool:
    wrapped = hasattr(view, "__wrapped__")  # by login_required or the like
    return not wrapped and (getattr(view, "__module__", ""), getattr(view, "__name__", "")) == EXPORTER


def _is_local(host: str) -> bool:
    return host in ("", "localhost") or host.startswith(("/", "@")) or _is_loopback(host)


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:  # a host's name
        return False
