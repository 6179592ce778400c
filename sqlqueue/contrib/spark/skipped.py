"""Batches that a sink has skipped: Spark says that they are done, and no task has read them.

A sink may know its batches by number, as Spark's files do in their folder's `_spark_metadata`. With a new checkpoint
Spark counts from 0 again, and such a sink takes the first batches for those that it has. Each task therefore notes in
the database that it reads the group's last batch, and a batch of which no task has is not settled.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlqueue.contrib.spark.membership import Membership
from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.plan import holds_any
from sqlqueue.contrib.spark.project import Project
from sqlqueue.contrib.spark.stream_ends import Ends
from sqlqueue.exceptions import ConfigurationError


def refuse_skipped(
    project: Project, members: Mapping[str, Membership], options: SourceOptions, done: Ends, checkpoint: str
) -> None:
    """Raise ConfigurationError if the group has messages in the last batch, which ends at `done`, and no task has read
    any. checkpoint: the identity of the query's."""
    last = {database: member for database, member in members.items() if done[database] > member.settled}
    if any(member.was_read(done[database], checkpoint) for database, member in last.items()):
        return
    for database, member in last.items():
        with project.at(database):
            if holds_any(member.log, options, member.settled + 1, done[database], member.server):
                raise ConfigurationError(
                    f"group {member.group!r} has messages after offset {member.settled} up to {done[database]}, and no "
                    "task has read them: the sink has skipped the batch. A sink that knows its batches by number, as "
                    "Spark's files do, takes the first ones of a new checkpoint for those that it has. Nothing of the "
                    "batch is settled: give the query a new checkpoint and a new output folder, and it begins after "
                    f"offset {member.settled}"
                )
