"""The archive: a folder of files or a place in an object store, and in it a part for each database.

A database has offsets and segments of its own, so its archive is one of its own, in `database=NAME`. What was archived
before there were several is DATABASE's, and stays where it is.
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


def of_database(root: str, database: str, home: bool) -> Archive:
    """Return the part of an archive that is a database's. database: "" if there is one log only; home: it is
    DATABASE's, whose segments may be of the time before there were several."""
    whole = opened(root)
    if not database or (home and any(map(whole.has, KINDS))):
        return whole
    return opened(_part(root, DATABASE + database))


def parts(root: str) -> dict[str, Archive]:
    """Return an archive's parts by database; "": what was archived while there was one log only."""
    whole = opened(root)
    names = sorted(name.removeprefix(DATABASE) for name in whole.folders() if name.startswith(DATABASE))
    found = {name: opened(_part(root, DATABASE + name)) for name in names}
    return {"": whole, **found} if not found or any(map(whole.has, KINDS)) else found


def read_archive(
    spark: SparkSession, folder: str, kind: str = MESSAGES, topic: str = "", days: tuple[str, str] | None = None
) -> DataFrame:
    """Return the messages or receipts in an archive: a folder, or a URI of an object store. topic: of this one only;
    days: the first and the last date that is wanted, as YYYY-MM-DD: other files are not read.

    An archive of several databases has a column `database`, "" for what was archived while there was one log only.
    """
    found = {
        database: part.read(spark, kind, topic, days) for database, part in parts(folder).items() if part.has(kind)
    }
    if not set(found) - {""}:
        return found[""] if found else opened(folder).read(spark, kind, topic, days)
    return reduce(
        DataFrame.unionByName, (rows.withColumn("database", F.lit(database)) for database, rows in found.items())
    )


def _part(root: str, name: str) -> str:
    return below(root, name) if "://" in str(root) else f"{root}/{name}"
