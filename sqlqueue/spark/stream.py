"""Reading the log as a stream that is a consumer group.

Spark asks for the next batch's end only when the last batch's sink has committed, and says where that ended: this is
when the group's positions move. They are current at the end of an AvailableNow query, too; commit(), which Spark calls
only when there is a next batch, adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from sqlqueue.exceptions import ConfigurationError
from sqlqueue.spark.options import Options
from sqlqueue.spark.project import Project
from sqlqueue.spark.scan import Scan
from sqlqueue.spark.tables import MESSAGES

if TYPE_CHECKING:
    from sqlqueue.spark.membership import Membership


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream.format("sqlqueue")`. Its offset is a place in the log: {"offset": 4711}, read up to there."""

    def __init__(self, project: Project, options: Options, tasks: int):
        if not options.group or not options.topics:
            raise ConfigurationError("a stream is a consumer group: give it the options group and topic")
        self._scan = Scan(project.access(options.alias), MESSAGES, MESSAGES.chosen(options.columns))
        self._project: Project | None = project
        self._options = options
        self._tasks = options.partitions or tasks
        self._member: Membership | None = None
        self._target: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What goes to the executors: one database's parameters, and no membership."""
        return {**self.__dict__, "_project": None, "_member": None}

    def initialOffset(self) -> dict[str, int]:
        """Return where the group stands: everything up to there is settled."""
        return {"offset": self._membership().settled}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the option maxRowsPerBatch as Spark's limit."""
        return ReadMaxRows(self._options.rows) if self._options.rows else ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix what "now" is: the horizon of this moment, for all of this run's batches."""
        from sqlqueue.spark.plan import reached

        self._target = reached(self._membership().alias, self._options.patience)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Settle what Spark has finished, and return where the next batch ends."""
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
        """Return how far a batch could reach now, for the query's progress."""
        return {"offset": self._membership().horizon()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Any]:
        """Divide a batch's rows among the tasks."""
        from sqlqueue.spark import plan

        member = self._membership()
        member.accept(end["offset"])
        return plan.portions(member.alias, self._options, start["offset"] + 1, end["offset"], self._tasks)

    def read(self, partition: Any) -> Iterator[Any]:
        """Yield Arrow batches."""
        return self._scan.read(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is left to do: latestOffset() has settled it."""

    def stop(self) -> None:
        """Give the leases back. Spark does not always get to call it; then they expire, or the next stream takes
        them."""
        member, self._member = self._member, None
        if member is not None:
            member.leave()

    def _membership(self) -> Membership:
        """Join the group, in the process that serves the query on the driver's side, when it is first asked."""
        assert self._project is not None
        if self._member is None:
            alias = self._project.engine(self._options.alias)
            from sqlqueue.spark.membership import Membership

            options = self._options
            self._member = Membership(alias, options.group, options.topics, options.start, options.patience)
        else:
            from sqlqueue.database.faults import close_lost_connections

            close_lost_connections()  # a batch may take longer than an idle one lasts
        return self._member
