"""A Spark session that has the data source."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import sqlqueue
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = str(Path(sqlqueue.__file__).resolve().parent.parent)
DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    "spark.executorEnv.TZ": "UTC",
    "spark.ui.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# Settings that must say UTC, or dates and hours would be of another zone; those of Java do so by an option.
ZONES = ("spark.sql.session.timeZone", "spark.executorEnv.TZ")
OF_JAVA = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
JAVA_ZONE = re.compile(r"-Duser\.timezone=(\S+)")
# A session on this machine alone listens on loopback only.
LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
NO_JAVA = (
    "Spark needs Java 17 or 21, and there is none on this machine (no `java` in the PATH, no JAVA_HOME). On Debian and "
    "Ubuntu, as root: apt-get install openjdk-17-jre-headless"
)


def session(app_name: str = "sqlqueue", **conf: str) -> SparkSession:
    """Return a Spark session (the running one, or a new one) that has the data source `sqlqueue`, all times in UTC.

    conf: Spark's settings, such as `**{"spark.master": "local[2]"}`; they override those of this function. Sets TZ of
    this process to UTC, since PySpark gives times in the process's time zone. Only this process needs the Django
    project (DJANGO_SETTINGS_MODULE). Raises ConfigurationError for another time zone than UTC, and without PySpark or
    Java.
    """
    conf = in_utc(conf)
    require_spark()
    os.environ["TZ"] = "UTC"
    time.tzset()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name)
    path = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH", "")]))
    local = LOCAL if conf.get("spark.master", "").startswith("local") else {}
    for name, value in {"spark.executorEnv.PYTHONPATH": path, **local, **conf}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def in_utc(conf: Mapping[str, str]) -> dict[str, str]:
    """Return DEFAULTS with these settings, every time zone UTC. Raises ConfigurationError for another one."""
    settings = {**DEFAULTS, **conf}
    zones = {name: [settings[name]] for name in ZONES} | {name: JAVA_ZONE.findall(settings[name]) for name in OF_JAVA}
    for name, named in zones.items():
        if not named:
            settings[name] += " -Duser.timezone=UTC"
        if other := set(named) - {"UTC"}:
            raise ConfigurationError(
                f"{name} must be UTC, not {min(other)!r}: the archive's dates and the analytics' hours are UTC"
            )
    return settings


def refuse_other_zone(spark: SparkSession) -> None:
    """Raise ConfigurationError for a session in another time zone: what depends on days, hours or times without a zone
    is computed in UTC."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    if zone != "UTC":
        raise ConfigurationError(
            f"this Spark session's time zone is {zone}, and days and hours are of UTC here: "
            'spark.conf.set("spark.sql.session.timeZone", "UTC")'
        )


def register(spark: SparkSession) -> None:
    """Register the data source `sqlqueue` with a session, for the Django project's present databases."""
    from sqlqueue.contrib.spark.project import of_django
    from sqlqueue.contrib.spark.source import registered

    spark.dataSource.register(registered(of_django(), spark.sparkContext.defaultParallelism))


def require_spark() -> None:
    """Raise ConfigurationError, which says what to install, unless PySpark and Java are installed."""
    for module in ("pyspark", "pyarrow"):
        if find_spec(module) is None:
            raise ConfigurationError(f"there is no {module} in this Python: pip install 'sqlqueue[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # spark-submit has started one
        raise ConfigurationError(NO_JAVA)
