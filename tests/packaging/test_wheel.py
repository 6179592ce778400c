"""The wheel stands by itself: built, installed into an empty environment, and used by a project there."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "sqlqueue"
# Django is fetched and installed: slower than other tests.
pytestmark = [pytest.mark.once, pytest.mark.timeout(300)]

SETTINGS = """
SECRET_KEY = "x"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "sqlqueue"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
"""

PUBLISH_AND_DRAIN = """
import sys

import django

django.setup()

from sqlqueue import consumer, publish
from sqlqueue.testing import drain

seen = []
consumer("orders")(lambda delivery: seen.append((delivery.payload, delivery.headers)))
consumer("orders", group="batch", batch=True)(lambda batch: seen.extend(each.payload for each in batch))
publish("orders", {"number": 7}, headers={"a": 1})
drain()
assert sorted(seen, key=str) == [({"number": 7}, {"a": 1}), {"number": 7}], seen
assert not {"msgspec", "pydantic", "attrs"} & set(sys.modules)
"""


def run(*command: object, **options: object) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, **options)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def source_files() -> set[str]:
    return {
        str(file.relative_to(ROOT))
        for file in PACKAGE.rglob("*")
        if file.is_file() and "__pycache__" not in file.parts and file.suffix not in (".pyc", ".pyo")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT)
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that holds the wheel and what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    interpreter = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", interpreter, "install", "--disable-pip-version-check", wheel)
    return interpreter


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    (folder / "plain_settings.py").write_text(SETTINGS)
    return folder


def project_environment(project: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"PYTHONPATH": str(project), "DJANGO_SETTINGS_MODULE": "plain_settings"}


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == source_files()
    assert "sqlqueue/py.typed" in names


def test_the_installed_package_is_the_wheels(python: Path, project: Path) -> None:
    script = "import pathlib, sqlqueue; print(pathlib.Path(sqlqueue.__file__).parent)"
    installed = Path(run(python, "-c", script, cwd=project, env=project_environment(project)).strip())
    assert installed.is_relative_to(python.parent.parent)
    missing = {name for name in source_files() if not (installed.parent / name).is_file()}
    assert not missing


def test_a_plain_project_checks_and_migrates(python: Path, project: Path) -> None:
    environment = project_environment(project)
    django_admin = (python, "-m", "django")
    run(*django_admin, "check", "--fail-level", "ERROR", cwd=project, env=environment)
    run(*django_admin, "migrate", "--verbosity", "0", cwd=project, env=environment)
    run(*django_admin, "makemigrations", "--check", "--dry-run", cwd=project, env=environment)
    assert (project / "db.sqlite3").is_file()


def test_a_plain_project_publishes_and_consumes_without_the_extras(python: Path, project: Path) -> None:
    environment = project_environment(project)
    run(python, "-m", "django", "migrate", "--verbosity", "0", cwd=project, env=environment)
    run(python, "-c", PUBLISH_AND_DRAIN, cwd=project, env=environment)
    typed = f'{SETTINGS}SQLQUEUE = {{"TOPICS": {{"orders": {{"payload_type": "collections.Counter"}}}}}}\n'
    (project / "typed_settings.py").write_text(typed)
    checked = subprocess.run(
        [str(python), "-m", "django", "check"],
        cwd=project,
        env=environment | {"DJANGO_SETTINGS_MODULE": "typed_settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode == 1
    assert "sqlqueue.E025" in checked.stderr
    assert "pip install sqlqueue[typed]" in checked.stderr
