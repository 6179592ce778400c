"""The pages of people's work in Django's admin."""

from sqlqueue.contrib.people.admin.work_items import WorkItemAdmin

__all__ = ["WorkItemAdmin"]
