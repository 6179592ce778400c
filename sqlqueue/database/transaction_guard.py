"""Whether a transaction in which application code runs is still the one that was begun for it.

A deadlock rolls a whole transaction back, on SQLite some other errors do, and on MySQL DDL commits it. Code that goes
on after that goes on in another transaction, with no word of it; what was to be committed with its writes would be
committed without them.
"""

from __future__ import annotations

from django.db import Error
from django.db.transaction import TransactionManagementError

from sqlqueue.database.error_codes import ErrorKind, classify
from sqlqueue.database.log import Log
from sqlqueue.exceptions import BrokenTransaction

# A transaction's own: no other one can release it.
SET = "SAVEPOINT sqlqueue_guard"
RELEASE = "RELEASE SAVEPOINT sqlqueue_guard"
BEGUN = "SELECT TRANSACTION_TIMESTAMP()"
ENDED = (
    "the handler returned, but its transaction had ended before: a deadlock or another error that it swallowed has "
    "rolled it back, or SQL that commits, such as DDL, has ended it"
)


class Guard:
    """Set at the beginning of the transaction that `atomic` has just opened, where a connection that is lost shows.

    On MySQL and SQLite it is a savepoint: two statements. A failed transaction of PostgreSQL's refuses every statement;
    there the guard is the time at which the transaction began, which {begun} gives to a statement that is needed
    anyway.
    """

    def __init__(self, log: Log):
        self._log, self._begun = log, None
        if log.connection.vendor == "postgresql":  # psycopg puts the beginning off until the first statement
            self._begun = log.execute(BEGUN).fetchone()[0]
        else:
            log.execute(SET)

    def release(self) -> None:
        """Raise BrokenTransaction if the transaction has ended meanwhile."""
        if self._begun is not None:
            return
        try:
            self._log.execute(RELEASE)
        except TransactionManagementError:
            raise  # it is to be rolled back, and Django says why
        except Error as error:
            if classify(error) is not ErrorKind.BROKEN:
                raise
            raise BrokenTransaction(ENDED) from error

    def compare(self, begun: object) -> None:
        """Raise BrokenTransaction if the value of {begun} is another transaction's."""
        if begun != self._begun:
            raise BrokenTransaction(ENDED)
