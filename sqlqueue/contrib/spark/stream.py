"""A streaming read of the log as a consumer group.

Spark asks for the end of the next batch only after the sink has committed the last batch, and says where that ended:
then the group's positions move, also at the end of an AvailableNow query. commit() does nothing, since Spark calls it
only when there is a next batch.

All partitions of a database are read to the same offset, so Spark's offset says one number for each database:
{"databases": {"a": 4711, "b": 12}, "checkpoint": …}. The checkpoint's identity is what its first offset gets and all
others repeat.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import Error, connections
from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sqlqueue.contrib.spark.options import SourceOptions
from sqlqueue.contrib.spark.project import Project
from sqlqueue.contrib.spark.scan import StreamBatch, TableScan
from sqlqueue.contrib.spark.tables import MESSAGES
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.retries import ErrorKind, classify, close_lost_connections
from sqlqueue.database.server_identity import ServerChanged, SessionReplaced
from sqlqueue.exceptions import ConfigurationError

if TYPE_CHECKING:
    from sqlqueue.contrib.spark.membership import Membership


logger = logging.getLogger("sqlqueue")

Ends = dict[str, int]  # by database
T = TypeVar("T")


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sqlqueue")`: a member of its group on each database."""

    def __init__(self, project: Project, options: SourceOptions, tasks: int):
        if not options.group or not options.topics:
            raise ConfigurationError("a stream is a consumer group: give it the options group and topic")
        self._sources = project.sources(options)
        self._scan = TableScan(MESSAGES, MESSAGES.chosen(options.columns, project.several))
        self._project, self._options = project, options
        self._tasks = options.tasks or tasks
        self._joined: dict[str, Membership] = {}
        self._former: dict[str, str] = {}  # under which names this stream has joined, by database
        self._targets: Ends = {}
        self._new_checkpoint = uuid.uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the executors, which are no members."""
        return {**self.__dict__, "_joined": {}}

    def initialOffset(self) -> dict[str, Any]:
        """Return the offsets up to which the group has settled everything."""
        return as_offset(self._of_each(lambda _, member: member.settled), self._new_checkpoint)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxRowsPerBatch as Spark's limit."""
        return ReadMaxRows(self._options.rows) if self._options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: the present horizon of each database."""
        self._targets = self._of_each(lambda _, member: member.wait_for_horizon(self._options.horizon_timeout))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Settle the batches that Spark has finished, and return the end of the next batch.

        While a database server is away, and where it was started again, there is no next batch: the stream joins its
        group again at the next call. A run of AvailableNow fails instead, for its end was that of the former server.
        """
        try:
            return self._settled_and_next(start, limit)
        except Exception as error:
            if self._targets or not self._former or not of_the_server(error):
                raise
            self._abandon(error)
            return start

    def _settled_and_next(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from sqlqueue.contrib.spark.membership import refuse_skipped  # its models need Django set up

        self._go_on()
        done, checkpoint = self._ends(start), start["checkpoint"]
        refuse_skipped(self._project, self._members(), self._options, done, checkpoint)
        ends = self._next(done, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

        def settle(database: str, member: Membership) -> None:
            planned = ends[database] if ends[database] > done[database] else None
            if planned is not None or done[database] > member.settled:
                member.settle(done[database], planned, checkpoint)

        self._of_each(settle)
        return as_offset(ends, checkpoint)

    def _abandon(self, error: Exception) -> None:
        logger.warning(logfmt("stream_rejoins", group=self._options.group, error=error))
        self._end(released=False)
        connections.close_all()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        """Return the portions of a batch's tasks."""
        self._go_on()
        first, last, checkpoint = self._ends(start), self._ends(end), end["checkpoint"]
        members = self._members()
        busy = [database for database in members if last[database] > first[database]] or list(members)[:1]
        tasks = max(1, self._tasks // len(busy))
        from sqlqueue.contrib.spark import plan  # its models need Django set up

        def planned(database: str, member: Membership) -> list[Any]:
            low, high = first[database] + 1, last[database]
            if database not in busy:
                return []
            if high > member.settled:
                member.run_again(high, checkpoint)
            batch = StreamBatch(member.group, member.topics, high, checkpoint)
            some = plan.portions(member.log, self._options, low, high, tasks, member.server)
            return [replace(portion, database=database, batch=batch) for portion in some]

        return [portion for some in self._of_each(planned).values() for portion in some]

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches."""
        with self._project.task(self._sources[partition.database]) as log:
            yield from self._scan.read(log, partition)

    def stop(self) -> None:
        """Release the leases. If Spark does not call this, they expire, or the next stream takes them."""
        self._end(released=True)

    def _end(self, released: bool) -> None:
        """End the memberships; released: and their leases, so that the next owner does not wait."""
        joined, self._joined = self._joined, {}
        for member in joined.values():
            member.leave() if released else member.abandon()

    def _next(self, done: Ends, most: int | None) -> Ends:
        """Return the ends of the next batch, of about `most` rows: each database gives as many."""
        from sqlqueue.contrib.spark.plan import next_end

        of_each = None if most is None else max(1, most // len(self._members()))

        def end(database: str, member: Membership) -> int:
            if member.paused():
                return done[database]
            highest = self._targets[database] if database in self._targets else member.horizon()
            return next_end(member.log, self._options, done[database], highest, of_each, member.server)

        return self._of_each(end)

    def _ends(self, offset: dict[str, Any]) -> Ends:
        """Return the ends that an offset says; of a database that it does not know, up to where the group is settled.
        Raises ConfigurationError for those that no stream of the group can have reached."""
        known = offset["databases"]
        return self._of_each(lambda database, member: member.accepted(known.get(database, member.settled)))

    def _of_each(self, act: Callable[[str, Membership], T]) -> dict[str, T]:
        """Return by database what `act` returns of it and its membership; an error says on which database it was."""
        found = {}
        for database, member in self._members().items():
            with self._project.at(database):
                found[database] = act(database, member)
        return found

    def _members(self) -> dict[str, Membership]:
        """Return the memberships by database; the first call joins the group, in the driver's process that serves the
        query."""
        if not self._joined:
            self._join()
        return self._joined

    def _go_on(self) -> None:
        """Close connections that were lost: a batch may take longer than an idle one lasts."""
        if self._joined:
            close_lost_connections()

    def _join(self) -> None:
        options, project = self._options, self._project
        home = project.engine()
        from sqlqueue.contrib.spark.membership import Membership
        from sqlqueue.log.topics import is_known, known

        if unknown := [topic for topic in options.topics if not is_known(home, topic)]:
            raise ConfigurationError(
                f"there is no topic {unknown[0]!r}.{did_you_mean(unknown[0], known(home))} A stream of a new topic can "
                f"start before the first publish if SQLQUEUE['TOPICS'] declares it: {{{unknown[0]!r}: {{}}}}"
            )
        placed = project.placed(self._sources, options.topics)
        if not placed:
            raise ConfigurationError(
                f"database {options.database!r} has none of the topics {', '.join(options.topics)}"
            )
        try:
            for database, topics in placed.items():
                log = project.engine(self._sources[database])
                with self._project.at(database):
                    former = self._former.get(database, "")
                    member = Membership(log, options.group, topics, options.start, options.horizon_timeout, former)
                self._joined[database] = member
                self._former[database] = member.name
        except BaseException:
            self._end(released=False)  # the leases expire, or the next attempt takes them
            raise


def as_offset(ends: Ends, checkpoint: str) -> dict[str, Any]:
    """Return ends as Spark's offset, with the checkpoint's identity."""
    return {"databases": dict(sorted(ends.items())), "checkpoint": checkpoint}


def of_the_server(error: BaseException | None) -> bool:
    """Tell whether an error is of a server that is away, was started again, or is another one; or whether its cause
    is."""
    while error is not None:
        if isinstance(error, (ServerChanged, SessionReplaced)):
            return True
        if isinstance(error, Error):
            return classify(error) is ErrorKind.GONE
        error = error.__cause__
    return False
