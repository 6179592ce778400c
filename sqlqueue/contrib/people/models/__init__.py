"""The tables of people's work."""

from sqlqueue.contrib.people.models.work_item import WorkItem
from sqlqueue.contrib.people.models.work_item_event import WorkItemEvent

__all__ = ["WorkItem", "WorkItemEvent"]
