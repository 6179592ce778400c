"""A backend of a project's own."""

from sqlqueue.tasks import SqlQueueBackend


class OwnBackend(SqlQueueBackend):
    """It differs in nothing."""
