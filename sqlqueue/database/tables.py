"""Which tables are on the queue's databases, and whether they are those that this version needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from django.apps import apps as installed
from django.core.management.base import CommandError
from django.db import router
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import Model

from sqlqueue.database.log import Log

INITIAL = ("sqlqueue", "0001_initial")
# The second migration of every development version before 1.0. No later migration may have this name.
OF_DEVELOPMENT = ("sqlqueue", "0002_operations")
REFUSED = "the queue's tables in database {alias!r} are those of a development version of sqlqueue"
REMEDY = (
    "No migration leads on from there. Make the tables anew, without the messages in them: stop the queue's processes,"
    " run this in `python manage.py dbshell --database {alias}`, and migrate again:\n{statements}"
)


def is_beside_the_log(label: str) -> bool:
    """Tell whether an app's tables are on the queue's databases: its AppConfig says so by `beside_the_log = True`."""
    return bool(getattr(installed.app_configs.get(label), "beside_the_log", False))


def labels() -> list[str]:
    """Return the labels of the apps whose tables are there."""
    return [label for label in installed.app_configs if is_beside_the_log(label)]


def queue_models() -> list[type[Model]]:
    """Return the models of these tables."""
    return [model for label in labels() for model in installed.get_app_config(label).get_models()]


def pending_migrations(log: Log, label: str = "") -> bool:
    """Tell whether a migration of these apps, or of one, has not been applied here, or the tables are those of a
    development version. Two statements."""
    apps = [label] if label else labels()
    recorded = recorded_migrations(log, apps)
    wanted = {(app, name) for app, name in _migrations() if app in apps}
    return OF_DEVELOPMENT in recorded or not wanted <= recorded


def recorded_migrations(log: Log, apps: Sequence[str] = ("sqlqueue",)) -> set[tuple[str, str]]:
    """Return the apps and names of the migrations of these apps that have been applied here. Two statements."""
    recorder = MigrationRecorder(log.connection)
    if not recorder.has_table():
        return set()
    return set(recorder.migration_qs.filter(app__in=apps).values_list("app", "name"))


def refuse_development_version(using: str, apps: Any, **kwargs: Any) -> None:
    """Raise CommandError, before every `migrate`, if the tables are those of a development version, with the statements
    that remove them. apps: the models as the recorded migrations made them."""
    log = Log.of(using)
    recorded = recorded_migrations(log)
    own = [model for model in apps.get_models() if model._meta.app_label == "sqlqueue"]
    if OF_DEVELOPMENT in recorded or (recorded == {INITIAL} and lacks_columns(log, own)):
        raise CommandError(f"{REFUSED.format(alias=log.alias)}. Nothing was changed. {remedy(log)}")


def remedy(log: Log) -> str:
    """Return how tables of a development version are made anew, with the statements."""
    connection = log.connection
    tables = [name for name in connection.introspection.table_names() if name.startswith("sqlqueue_")]
    statements = [f"DROP TABLE {name};" for name in sorted(tables, reverse=True)]  # events before their work items
    if connection.vendor == "postgresql":
        statements.append("DROP SEQUENCE IF EXISTS sqlqueue_generation;")
    names = ", ".join(f"'{label}'" for label in labels())
    statements.append(f"DELETE FROM django_migrations WHERE app IN ({names});")
    return REMEDY.format(alias=log.alias, statements="\n".join(statements))


def lacks_columns(log: Log, models: Iterable[type[Model]]) -> bool:
    """Tell whether a table or a column of these models is missing here."""
    introspection = log.connection.introspection
    present = set(introspection.table_names())
    for model in models:
        if not router.allow_migrate_model(log.alias, model):
            continue
        table, wanted = model._meta.db_table, {field.column for field in model._meta.concrete_fields}
        if table not in present:
            return True
        with log.connection.cursor() as cursor:
            if not wanted <= {found.name for found in introspection.get_table_description(cursor, table)}:
                return True
    return False


@cache
def _migrations() -> frozenset[tuple[str, str]]:
    """Return the apps and names of all migrations: files, which stay what they are."""
    return frozenset(MigrationLoader(None).graph.nodes)
