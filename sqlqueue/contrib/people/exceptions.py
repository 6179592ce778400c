"""What handlers raise to hand a message over, and what is raised to people."""

from __future__ import annotations

from typing import Any

from sqlqueue.exceptions import InvalidMessage, Settlement, SqlqueueError


class HandOver(Settlement):
    """A person has to go on with it: the message becomes a work item in the admin, with the reason, and is acked, in
    one transaction. form: values (a dict of JSON values) that the item's form is filled with, by the names of its
    fields.

    Raises InvalidMessage for a reason that is no text, and a form that is no dict.
    """

    def __init__(self, reason: str = "", *, form: dict[str, Any] | None = None):
        if not isinstance(reason, str):
            raise InvalidMessage(f"HandOver: the reason must be a text, not {reason!r}")
        if form is not None and not isinstance(form, dict):
            raise InvalidMessage(f"HandOver: form must be a dict of values by the names of fields, not {form!r}")
        super().__init__(reason)
        self.form = form


class WorkItemChanged(SqlqueueError):
    """A work item is not as the person had seen it: another person was faster. Nothing was changed."""
