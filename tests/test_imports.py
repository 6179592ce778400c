"""`from sqlqueue import …` works anywhere, and costs nothing before its first use."""

import subprocess
import sys
from pathlib import Path

import pytest

import sqlqueue
from tests.processes import ROOT

pytestmark = pytest.mark.once

SETTINGS = """
INSTALLED_APPS = ["shop", "sqlqueue"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": "{database}"}}}}
USE_TZ = True
"""
MODELS = """
from django.db import models
from sqlqueue import NewMessage, Retry, publish, publish_many, publish_on_commit


class Order(models.Model):
    number = models.IntegerField()

    def save(self, **options):
        super().save(**options)
        publish("orders", self.number, key=str(self.number))
"""
SCRIPT = """
import django
django.setup()
from django.core.management import call_command
call_command("migrate", run_syncdb=True, verbosity=0)
from django.db import transaction
from shop.models import Order
with transaction.atomic():
    Order(number=7).save()
from sqlqueue.testing import published
print([message.payload for message in published("orders")])
"""


def python(script: str, folder: Path, **environment: str) -> str:
    path = f"{folder}:{ROOT}"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env={"PYTHONPATH": path, "PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_models_module_may_import_publish(tmp_path: Path) -> None:
    app = tmp_path / "shop"
    app.mkdir()
    (app / "__init__.py").touch()
    (app / "models.py").write_text(MODELS)
    (tmp_path / "shop_settings.py").write_text(SETTINGS.format(database=tmp_path / "shop.sqlite3"))
    assert python(SCRIPT, tmp_path, DJANGO_SETTINGS_MODULE="shop_settings") == "[7]"


def test_the_package_alone_imports_no_django(tmp_path: Path) -> None:
    script = "import sqlqueue, sys; print(sqlqueue.__version__, 'django' in sys.modules)"
    assert python(script, tmp_path) == f"{sqlqueue.__version__} False"


def test_the_core_and_the_exceptions_need_no_settings(tmp_path: Path) -> None:
    script = (
        "from sqlqueue.core import codec, keys; from sqlqueue.core.partition import assigned, window;"
        "from sqlqueue import Retry, InvalidMessage;"
        "import sys; print('django' in sys.modules)"
    )
    assert python(script, tmp_path) == "False"


@pytest.mark.parametrize("name", sqlqueue.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(sqlqueue, name).__name__ == name


def test_what_can_be_had_is_listed() -> None:
    assert set(sqlqueue.__all__) < set(dir(sqlqueue))


def test_a_name_that_there_is_not_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'publsh'"):
        sqlqueue.publsh  # noqa: B018
