"""The operators' pages in Django's admin: they parse a request, call operations and show stats. Only a project's own
admin site imports it, for `register`."""

from django.contrib.admin import AdminSite
from django.contrib.admin import site as default_site

from sqlqueue.admin import (  # noqa: F401  (they register their pages)
    consumer_groups,
    dead_letters,
    messages,
    overview,
    periodic_schedules,
    requests,
    scheduled_messages,
    tables,
    topics,
)
from sqlqueue.admin.pages import DatabaseSite
from sqlqueue.database.tables import is_beside_the_log

__all__ = ["database_site", "register"]


def register(site: AdminSite) -> None:
    """Register every page with an admin site of the project's own, beside the default one."""
    for model, model_admin in default_site._registry.items():
        if is_beside_the_log(model._meta.app_label) and not site.is_registered(model):
            site.register(model, type(model_admin))


def database_site(database: str) -> DatabaseSite:
    """Return an admin site with every page over one log, for the urls of a project: `path("databases/b/",
    database_site("b").urls)`. The other sites show DATABASE's database. Raises ConfigurationError if there is no such
    database."""
    site = DatabaseSite(database)
    register(site)
    return site
