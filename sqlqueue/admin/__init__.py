"""The pages for people, in Django's admin: one file a model or page. They parse, call the verbs, and show."""

from sqlqueue.admin.messages import MessageAdmin
from sqlqueue.admin.replays import ReplayAdmin

__all__ = ["MessageAdmin", "ReplayAdmin"]
