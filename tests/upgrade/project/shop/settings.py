"""A project that runs on an earlier sqlqueue and on the present one, so it imports nothing of the tests."""

import json
import os
from pathlib import Path

import sqlqueue

if not Path(sqlqueue.__file__).is_relative_to(os.environ["PACKAGE"]):
    raise RuntimeError(f"sqlqueue is that of {sqlqueue.__file__}, not of {os.environ['PACKAGE']}")

SECRET_KEY = "only for tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "sqlqueue", "shop"]
DATABASES = json.loads(os.environ["DATABASES"])
SQLQUEUE = json.loads(os.environ["SQLQUEUE"])
