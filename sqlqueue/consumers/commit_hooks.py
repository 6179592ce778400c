"""What handlers that share a transaction have registered with `transaction.on_commit`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from sqlqueue.core import forks
from sqlqueue.core.logfmt import logfmt
from sqlqueue.database.log import Log

logger = logging.getLogger("sqlqueue")


def part_commit_hooks(log: Log) -> None:
    """Let each hook of the transaction that is open run, whatever those before it raise: they are different handlers'.
    Django would skip all that follow."""
    connection: Any = log.connection
    if not connection.savepoint_ids:  # else it is a TestCase's own, and so are the hooks
        connection.run_on_commit = [
            (savepoints, _guarded(log, hook), robust) for savepoints, hook, robust in connection.run_on_commit
        ]


def _guarded(log: Log, hook: Callable[[], Any]) -> Callable[[], None]:
    def run() -> None:
        process = forks.generation
        try:
            try:
                hook()
            finally:
                forks.leave_if_forked(process)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            logger.error(logfmt("commit_hook_failed", log=log, hook=repr(hook), error=error), exc_info=error)

    return run
