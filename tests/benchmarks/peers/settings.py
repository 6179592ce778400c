"""The Django project of a peer in the comparison: PEER names it, DATABASE_URL where its rows are."""

import os

from tests.benchmarks.peers.adapter import comes_back
from tests.settings import database

PEER = os.environ["PEER"]
ADAPTERS = "tests.benchmarks.peers.adapters"
APPS = {
    "django-ox": ["django_ox"],
    "django-tasks-db": ["django_tasks_db"],
    "django-q2": ["django_q"],
    "procrastinate": ["procrastinate.contrib.django"],
}
BACKENDS = {
    "django-ox": {"BACKEND": "django_ox.backend.OxBackend", "OPTIONS": {"LOCK_TIMEOUT": comes_back(300)}},
    "django-tasks-db": {"BACKEND": "django_tasks_db.DatabaseBackend"},
}

SECRET_KEY = "only for benchmarks"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Connections stay open, of all peers that leave them to Django.
DATABASES = {"default": {**database(os.environ["DATABASE_URL"]), "CONN_MAX_AGE": None}}
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "tests.benchmarks.peers",
    *(["sqlqueue"] if PEER.startswith("sqlqueue") else APPS.get(PEER, [])),
]
if PEER in BACKENDS:
    TASKS = {"default": BACKENDS[PEER]}
SQLQUEUE = {
    "CONSUMERS_MODULE": "adapters.sqlqueue",
    "LEASE_DURATION": comes_back(30),
    "HEARTBEAT_INTERVAL": comes_back(30) / 3,
}
Q_CLUSTER = {
    "name": "peers",
    "workers": 4,
    "timeout": int(0.75 * comes_back(120)),
    "retry": comes_back(120),
    "queue_limit": 50,
    "bulk": 10,
    "orm": "default",
    "log_level": "WARNING",
}
PROCRASTINATE_IMPORT_PATHS = [f"{ADAPTERS}.procrastinate"]
