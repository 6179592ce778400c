"""The archive: a folder of files or a place in an object store, and in it a part for each database.

Of several databases each has offsets and segments of its own, so its archive is one of its own, in `database=NAME`.
"""

from __future__ import annotations

from functools import reduce
from urllib.parse import urlsplit

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sqlqueue.contrib.spark.archive_rows import KINDS, MESSAGES
from sqlqueue.contrib.spark.folder import Folder
from sqlqueue.contrib.spark.objects import ObjectStore, below
from sqlqueue.contrib.spark.storage import Archive
from sqlqueue.exceptions import ConfigurationError

DATABASE = "database="


def opened(root: str) -> Archive:
    """Return an archive: a folder, or with a URI such as s3://bucket/lake a place in an object store.

    Raises ConfigurationError for a URI that pyarrow does not know.
    """
    text = str(root)
    if "://" not in text:
        return Folder(text)
    if text.startswith("file:"):
        raise ConfigurationError(f"{text} is a folder: give its path, without file://")
    if urlsplit(text).password is not None:
        raise ConfigurationError("an archive's keys are not for its URI: let the environment have them")
    try:
        return ObjectStore(text)
    except (ValueError, OSError) as error:
        raise ConfigurationError(f"{text} cannot be opened: {error}") from error


def existing(root: str) -> Archive:
    """Return an archive; raise ConfigurationError if it does not exist."""
    archive = opened(root)
    if not archive.exists():
        raise ConfigurationError(f"there is no folder {archive.root}: {archive.absent}")
    return archive


def of_database(root: str, database: str) -> Archive:
    """Return the part of an archive that is a database's; database: "" if there is one log only."""
    return opened(_part(root, DATABASE + database) if database else root)


def parts(root: str) -> dict[str, Archive]:
    """Return an archive's parts by database; "" if it is of one log only. Raises ConfigurationError if it is both."""
    whole = opened(root)
    names = sorted(name.removeprefix(DATABASE) for name in whole.folders() if name.startswith(DATABASE))
    if not names:
        return {"": whole}
    if any(map(whole.has, KINDS)):
        raise ConfigurationError(
            f"{root} has segments beside its parts {DATABASE}…: move its folders and files, which are of the time "
            "before there were several databases, into the part of the database that they are of"
        )
    return {name: of_database(root, name) for name in names}


def read_archive(
    spark: SparkSession, folder: str, kind: str = MESSAGES, topic: str = "", days: tuple[str, str] | None = None
) -> DataFrame:
    """Return the messages or receipts in an archive: a folder, or a URI of an object store. topic: of this one only;
    days: the first and the last date that is wanted, as YYYY-MM-DD: other files are not read.

    An archive of several databases has a column `database`.
    """
    found = parts(folder)
    if "" in found:
        return found[""].read(spark, kind, topic, days)
    rows = {database: part.read(spark, kind, topic, days) for database, part in found.items() if part.has(kind)}
    return reduce(DataFrame.unionByName, (each.withColumn("database", F.lit(name)) for name, each in rows.items()))


def _part(root: str, name: str) -> str:
    return below(root, name) if "://" in str(root) else f"{root}/{name}"
