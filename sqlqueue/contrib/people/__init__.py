"""Work done by people: messages become work items, which people decide in the admin. `INSTALLED_APPS` has
"sqlqueue.contrib.people" for it."""

from sqlqueue.contrib.people.exceptions import HandOver, WorkItemChanged
from sqlqueue.contrib.people.topics import work_on

__all__ = ["HandOver", "WorkItemChanged", "work_on"]
