"""A streaming read of the log as a consumer group.

Spark asks for the end of the next batch only after the sink has committed the last batch, and says where that ended:
then the group's positions move, also at the end of an AvailableNow query. commit() does nothing, since Spark calls it
only when there is a next batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.options import SourceOptions
from sqlqueue.spark.project import Project
from sqlqueue.spark.scan import TableScan
from sqlqueue.spark.tables import MESSAGES

if TYPE_CHECKING:
    from sqlqueue.spark.membership import Membership


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sqlqueue")`. Spark's offset {"offset": 4711} means that the log is read up to 4711."""

    def __init__(self, project: Project, options: SourceOptions, tasks: int):
        if not options.group or not options.topics:
            raise ConfigurationError("a stream is a consumer group: give it the options group and topic")
        self._scan = TableScan(project.access(options.alias), MESSAGES, MESSAGES.chosen(options.columns))
        self._project: Project | None = project
        self._options = options
        self._tasks = options.tasks or tasks
        self._member: Membership | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the executors: the parameters of one database, and no membership."""
        return {**self.__dict__, "_project": None, "_member": None}

    def initialOffset(self) -> dict[str, int]:
        """Return the offset up to which the group has settled everything."""
        return {"offset": self._membership().settled}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxRowsPerBatch as Spark's limit."""
        return ReadMaxRows(self._options.rows) if self._options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of this run: the present horizon."""
        from sqlqueue.spark.plan import wait_for_horizon

        self._target = wait_for_horizon(self._membership().alias, self._options.horizon_timeout)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Settle the batches that Spark has finished, and return the end of the next batch."""
        from sqlqueue.spark.plan import next_end

        member = self._membership()
        done = start["offset"]
        member.accept(done)
        highest = member.horizon() if self._target is None else self._target
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        end = done if member.paused() else next_end(member.alias, self._options, done, highest, most)
        if end > done or done > member.settled:
            member.settle(done, end if end > done else None)
        return {"offset": end}

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the horizon, for the query's progress."""
        return {"offset": self._membership().horizon()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        """Return the portions of a batch's tasks."""
        from sqlqueue.spark import plan

        member = self._membership()
        member.accept(end["offset"])
        return plan.portions(member.alias, self._options, start["offset"] + 1, end["offset"], self._tasks)

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield a portion's rows as Arrow batches."""
        return self._scan.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: latestOffset() settles."""

    def stop(self) -> None:
        """Release the leases. If Spark does not call this, they expire, or the next stream takes them."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()

    def _membership(self) -> Membership:
        """Return the membership; the first call joins the group, in the driver's process that serves the query."""
        assert self._project is not None
        if self._member is None:
            alias = self._project.engine(self._options.alias)
            from sqlqueue.spark.membership import Membership

            options = self._options
            self._member = Membership(alias, options.group, options.topics, options.start, options.horizon_timeout)
        else:
            from sqlqueue.database.retries import close_lost_connections

            close_lost_connections()  # a batch may take longer than an idle connection lasts
        return self._member
