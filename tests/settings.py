"""The tests' Django project, inside pytest and in the processes that tests start.

DATABASE_URL names the database. Inside pytest Django makes the test database beside it (`test_…`); in a
process started by tests.processes it names the test database itself.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import django
import environ

BASE_DIR = Path(__file__).resolve().parent
env = environ.Env()

DATABASE_OPTIONS = {
    "django.db.backends.sqlite3": {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
    },
    "django.db.backends.mysql": {
        "charset": "utf8mb4",
        "init_command": "SET sql_mode = 'STRICT_TRANS_TABLES'",
    },
}


def database(url: str) -> dict:
    """Return the settings of the database of a URL; options in its query win over these."""
    config = env.db_url_config(url)
    engine = config["ENGINE"]
    config["OPTIONS"] = DATABASE_OPTIONS.get(engine, {}) | config.get("OPTIONS", {})
    if engine == "django.db.backends.sqlite3":
        # A file: threads and processes cannot share a database in memory.
        file = Path(config["NAME"])
        config["TEST"] = {"NAME": str(file.with_name(f"test_{file.name}"))}
    elif engine == "django.db.backends.mysql":
        config["TEST"] = {"CHARSET": "utf8mb4", "COLLATION": "utf8mb4_unicode_ci"}
    elif env("POOLER", default=""):
        config["DISABLE_SERVER_SIDE_CURSORS"] = True  # they would outlive their transactions
    return config


DATABASES = {"default": database(env("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'tests.sqlite3'}"))}
# Further ones, for processes of tests with databases: alias=URL, with spaces between them.
FURTHER = dict(one.split("=", 1) for one in env("FURTHER_URLS", default="").split())
DATABASES |= {alias: database(url) for alias, url in FURTHER.items()}
DATABASE_ROUTERS = ["sqlqueue.database.router.Router"] if FURTHER else []
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

SECRET_KEY = "only for tests"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "sqlqueue",
    "sqlqueue.contrib.batches",
    "sqlqueue.contrib.people",
    "sqlqueue.contrib.spark",
    "tests.app",
    "tests.tasks",  # where tasks may be
    "example_project.flights",
]
if django.VERSION < (6, 0) and find_spec("django_tasks"):
    INSTALLED_APPS += ["django_tasks"]  # what later ones have themselves
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]

# Processes that tests start get theirs through the environment.
SQLQUEUE = json.loads(env("SQLQUEUE", default="{}"))
if "TASKS" in env:
    TASKS = json.loads(env("TASKS"))
