"""The log that most tests work on."""

from sqlqueue.database.log import Log

LOG = Log.of("default")
