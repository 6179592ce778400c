"""A database router that keeps the queue's tables on SQLQUEUE["DATABASE"] and on the databases that its topics name,
and nothing else there because of it."""

from __future__ import annotations

from typing import Any

from sqlqueue.conf import settings
from sqlqueue.database.tables import is_beside_the_log
from sqlqueue.exceptions import ConfigurationError


class Router:
    """`DATABASE_ROUTERS = ["sqlqueue.database.router.Router"]`. Reads go there too: a replica is behind, and a consumer
    that reads behind its own writes would skip messages."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        """Return the alias of the log that the row in question is on; DATABASE without one, or for a replica's."""
        if not is_beside_the_log(model._meta.app_label):
            return None
        state = getattr(hints.get("instance"), "_state", None)
        return state.db if state is not None and state.db in _aliases() else _aliases()[0]

    db_for_write = db_for_read

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Create the queue's tables on the queue's aliases only."""
        return db in _aliases() if is_beside_the_log(app_label) else None


def _aliases() -> tuple[str, ...]:
    """Return the queue's aliases, DATABASE first. System checks ask for them too, also where an option is wrong: E001
    tells what."""
    try:
        return settings.aliases
    except ConfigurationError:
        return (settings.given_alias(),)
