"""A consumers module that declares a topic with a team."""

from sqlqueue.contrib.people import work_on

work_on("guarded", teams=["cash"])
