"""Settings of the example site: a SQLite file unless DATABASE_URL names a MySQL, MariaDB or PostgreSQL database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import django
import environ

from example_project.secret_key import checkout_secret_key

env = environ.Env()

BASE_DIR = Path(__file__).resolve().parent.parent
VAR_DIR = Path(env.str("VAR_DIR", default=str(BASE_DIR / "var"))).resolve()
VAR_DIR.mkdir(parents=True, exist_ok=True)

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="") or checkout_secret_key(VAR_DIR / "secret-key")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["127.0.0.1", "localhost", "[::1]"])

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "sqlqueue",
    "sqlqueue.contrib.batches",
    "sqlqueue.contrib.people",
    "sqlqueue.contrib.spark",
    "example_project.flights",
    "example_project.reports",
    "example_project.refunds",
    "example_project.payments",
    "example_project.seats",
]
if django.VERSION < (6, 0):
    INSTALLED_APPS += ["django_tasks"]  # what later ones have themselves

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "example_project.urls"
WSGI_APPLICATION = "example_project.wsgi.application"
ASGI_APPLICATION = "example_project.asgi.application"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DEMO_DATABASE = VAR_DIR / "demo.sqlite3"
"""The only database file that the demo may remove to start afresh."""


def _database() -> dict[str, Any]:
    """Return the default database's settings, with the options that a queue needs on its vendor."""
    database: dict[str, Any]
    if env.str("DATABASE_URL", default=""):
        database = env.db_url("DATABASE_URL")
    else:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(DEMO_DATABASE)}
    # A consumer's thread closes old connections after every message, as Django does after a request: with the default,
    # 0 seconds, each message would need a new connection.
    database.setdefault("CONN_MAX_AGE", 600)
    options = database.setdefault("OPTIONS", {})
    if database["ENGINE"].endswith("sqlite3"):
        # WAL: readers never wait for the writer. FULL: a commit survives a power cut. IMMEDIATE: a transaction takes
        # the write lock when it begins, where `timeout` (seconds) applies, and not half way, where SQLite refuses.
        options.setdefault("init_command", "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")
        options.setdefault("transaction_mode", "IMMEDIATE")
        options.setdefault("timeout", 20)
    elif database["ENGINE"].endswith("mysql"):
        options.setdefault("charset", "utf8mb4")
        options.setdefault("init_command", "SET sql_mode='STRICT_TRANS_TABLES'")
    return database


DATABASES = {"default": _database()}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

LANGUAGE_CODE = "en-us"
TIME_ZONE = "UTC"
USE_TZ = True
STATIC_URL = "static/"

# No flight is ever collected, so that `checkflights` can compare the whole log at any time.
SQLQUEUE = {
    "TOPICS": {
        "flights": {"retention": None},
        "tasks.default": {"partitions": 1},
        # A person decides about a large refund, in the admin, and the decision is a message again (docs/people.md).
        "refunds": {"partitions": 1},
        "refund-decisions": {"partitions": 1},
        "payments": {"partitions": 4},
        "seats": {"partitions": 1},
        "airport-reports": {"partitions": 1},
        "newsletters": {"partitions": 1},
    }
}
TASKS = {"default": {"BACKEND": "sqlqueue.tasks.SqlQueueBackend"}}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"sqlqueue": {"handlers": ["console"], "level": env.str("LOG_LEVEL", default="INFO")}},
}
