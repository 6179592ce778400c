"""System checks. Their numbers are for good: sqlqueue.E001 … errors, sqlqueue.W… warnings."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Any

from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.checks import Warning as Caution
from django.db import Error as DatabaseError
from django.db import connections, router

from sqlqueue.conf import settings
from sqlqueue.consumers.registry import registry
from sqlqueue.database import sequence
from sqlqueue.database.server import findings
from sqlqueue.exceptions import ConfigurationError

TAG = "sqlqueue"


@register(TAG)
def check_settings(**kwargs: Any) -> list[CheckMessage]:
    """E001: the SQLQUEUE setting is wrong (unknown options, wrong values, a lease shorter than two heartbeats)."""
    found: list[CheckMessage] = [
        Error(problem, hint="See the settings in the documentation.", id="sqlqueue.E001")
        for problem in settings.problems()
    ]
    if not found and settings.DATABASE not in connections:
        text = f"SQLQUEUE['DATABASE'] names the alias {settings.DATABASE!r}, which DATABASES does not have"
        found.append(Error(text, hint=f"It has: {', '.join(connections)}.", id="sqlqueue.E001"))
    return found


@register(TAG)
def check_consumers(**kwargs: Any) -> list[CheckMessage]:
    """E010: a `consumers` module cannot be imported or has a wrong option; E011: two handlers for one group and topic;
    W012: a visibility timeout that outlives the shutdown, or is shorter than what the lease needs."""
    if settings.problems():
        return []
    try:
        registry.discover()
    except ConfigurationError as error:
        return [Error(str(error), hint="Correct the @consumer that it names.", id="sqlqueue.E010")]
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"a {settings.CONSUMERS_MODULE!r} module cannot be imported: {error!r}"
        return [Error(text, hint=f"See {place.filename}, line {place.lineno}.", id="sqlqueue.E010")]
    found: list[CheckMessage] = []
    for first, second in registry.duplicates:
        text = f"{first.name} and {second.name} both handle topic {first.topic!r} for group {first.group!r}"
        hint = "Give one of them another group: each group gets every message."
        found.append(Error(text, hint=hint, id="sqlqueue.E011"))
    for consumer in registry.consumers.values():
        if consumer.manners.atomic and consumer.manners.visibility_timeout > 3600:
            timeout = consumer.manners.visibility_timeout
            text = f"{consumer.name} is atomic and may run for {timeout:g} s in one transaction"
            hint = "A long transaction holds locks and the horizon; split the work, or do not make it atomic."
            found.append(Caution(text, hint=hint, id="sqlqueue.W012"))
    if settings.IDLE_POLL_INTERVAL > settings.LEASE_DURATION:
        text = f"IDLE_POLL_INTERVAL ({settings.IDLE_POLL_INTERVAL:g} s) is longer than LEASE_DURATION"
        found.append(Caution(text, hint="Poll at least once in a lease.", id="sqlqueue.W013"))
    return found


@register(TAG)
def check_aliases(**kwargs: Any) -> list[CheckMessage]:
    """W020: business models live on another alias, where publishing in their transaction is not one with it;
    W021: USE_TZ is off; E022: the queue's models are routed elsewhere; E023: its alias has autocommit off."""
    if settings.problems() or settings.DATABASE not in connections:
        return []
    found: list[CheckMessage] = []
    alias = settings.DATABASE
    elsewhere: dict[str, str] = {}
    for model in apps.get_models():
        written_to = router.db_for_write(model)
        if model._meta.app_label == "sqlqueue":
            if written_to != alias:
                text = f"{model.__name__} is routed to {written_to!r}, but SQLQUEUE['DATABASE'] is {alias!r}"
                hint = "Add 'sqlqueue.database.router.Router' to DATABASE_ROUTERS, before the others."
                found.append(Error(text, hint=hint, id="sqlqueue.E022"))
                break
        elif model._meta.managed and not model._meta.proxy and written_to != alias:
            elsewhere.setdefault(written_to, model._meta.label)
    if not connections.settings[alias]["AUTOCOMMIT"]:
        text = f"DATABASES[{alias!r}]['AUTOCOMMIT'] is False: what a consumer locks and writes would wait for a commit"
        hint = "Leave AUTOCOMMIT out, and use transaction.atomic() where statements belong together."
        found.append(Error(text, hint=hint, id="sqlqueue.E023"))
    for other, label in elsewhere.items():
        text = f"models such as {label} are written to {other!r}, but the queue lives on {alias!r}"
        hint = "A publish in a transaction on another alias is not part of it; use publish_on_commit there."
        found.append(Caution(text, hint=hint, id="sqlqueue.W020"))
    if not django_settings.USE_TZ:
        text = "USE_TZ is False: the queue's times, which are UTC, are shown as local ones; queueanalytics does not run"
        found.append(Caution(text, hint="Set USE_TZ = True.", id="sqlqueue.W021"))
    return found


@register(TAG, Tags.database)
def check_server(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E002 to E005, W006, W007, W009, W014, W015: what of the server speaks against the queue's promises. Runs with
    `check --database`."""
    if not databases or settings.problems() or settings.DATABASE not in databases:
        return []
    try:
        return [
            (Error if finding.error else Caution)(
                finding.text, hint=finding.hint, id=f"sqlqueue.{'E' if finding.error else 'W'}{finding.number:03}"
            )
            for finding in findings(settings.DATABASE)
        ]
    except DatabaseError as error:
        return [Error(f"the queue's database does not answer: {error}", id="sqlqueue.E008")]


@register(TAG, Tags.database)
def check_offsets(databases: Sequence[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """E024: offsets would be handed out again below what is known of them. Runs with `check --database`."""
    if not databases or settings.problems() or settings.DATABASE not in databases:
        return []
    try:
        mark = sequence.look(settings.DATABASE)
    except DatabaseError:  # E008 says so
        return []
    if not mark.fell_back:
        return []
    text = (
        f"the log's sequence stands at offset {mark.handed_out}, and {mark.column} is at {mark.known}: it fell back (a "
        "restore, a failover, TRUNCATE), and what is published next would not be delivered"
    )
    hint = "Run `python manage.py migrate sqlqueue`, which raises it; then replay what was published meanwhile."
    return [Error(text, hint=hint, id="sqlqueue.E024")]
