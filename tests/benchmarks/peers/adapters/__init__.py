"""One module for each peer. `ADAPTERS` names the classes, so that nothing but the chosen peer is imported."""

from importlib import import_module

from tests.benchmarks.peers.adapter import Adapter

ADAPTERS = {
    "sqlqueue": "sqlqueue.SQLQueue",
    "sqlqueue-mariadb": "sqlqueue.OnMariaDB",
    "sqlqueue-sqlite": "sqlqueue.OnSQLite",
    "rfc": "rfc.RFC",
    "django-ox": "django_ox.DjangoOx",
    "django-tasks-db": "django_tasks_db.DjangoTasksDB",
    "django-q2": "django_q2.DjangoQ2",
    "huey": "huey.Huey",
    "procrastinate": "procrastinate.Procrastinate",
    "pgqueuer": "pgqueuer.OnPostgreSQL",
    "dbos": "dbos.OnPostgreSQL",
    "celery": "celery.OnRedis",
    "dramatiq": "dramatiq.Dramatiq",
    "rq": "rq.RQ",
}
SERVERS = {
    "sqlqueue-mariadb": "mariadb",
    "rfc": "mariadb",
    "sqlqueue-sqlite": "sqlite",
    **dict.fromkeys(("celery", "dramatiq", "rq"), "redis"),
}  # the others: PostgreSQL
LABELS = {"sqlqueue": "sqlqueue, PostgreSQL", "sqlqueue-mariadb": "sqlqueue, MariaDB", "rfc": "the RFC, MariaDB"}


def adapter(name: str) -> Adapter:
    """Import a peer. Django must be set up."""
    module, _, kind = ADAPTERS[name].rpartition(".")
    return getattr(import_module(f"{__name__}.{module}"), kind)()
