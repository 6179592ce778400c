"""What people may do with work items. The forms are on an item's page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import BadRequest, ValidationError
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from sqlqueue.admin.cells import MomentField
from sqlqueue.admin.operation import Done, Operation, Text
from sqlqueue.admin.pages import user_name
from sqlqueue.contrib.people import work
from sqlqueue.contrib.people.admin.forms import JSONTextField, UserField, decision_type, decision_values, fields_of
from sqlqueue.contrib.people.admin.permissions import ASSIGN, REVIEW, WORK, may_on
from sqlqueue.contrib.people.exceptions import WorkItemChanged
from sqlqueue.contrib.people.models import DONE, OPEN
from sqlqueue.contrib.people.models import REVIEW as IN_REVIEW
from sqlqueue.exceptions import PayloadMismatch

PREFIX = "field-"  # of the names of a payload type's fields: they may be called as the form's own
WHOLE = "payload"  # the field for a decision that no payload type describes


class WorkItemOperation(Operation):
    """Something that a person may do with an item. Its entry is in the item's audit trail. The URL has the version of
    the item that the person has seen."""

    asks = several = False
    flag = 0
    change: ClassVar[Callable[..., None]]  # takes the item's number, its version, the user, values, and the comment
    done: ClassVar[Text]
    values: Sequence[str] = ()  # the fields whose values it takes

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        [self.item], self.user = self.rows, user_name(self.request)
        self.own = self.item.assignee in ("", self.user)

    @cached_property
    def permitted(self) -> bool:
        """Whether the user may do it with items of the topic."""
        return may_on(self.request.user, self.item.topic, *self.permissions)

    @property
    def url(self) -> str:
        """The URL that it is sent to."""
        return f"{super().url}?version={self.item.version}"

    def run(self) -> Done:
        """Do it, unless the item has been changed meanwhile."""
        version = self.request.GET.get("version", "")
        if not (version.isascii() and version.isdigit() and len(version) < 10):
            raise BadRequest("the version says which state of a work item is meant")
        if int(version) != self.item.version:  # the permission is of the item as it was read
            raise WorkItemChanged(work.CHANGED)
        given = [self.cleaned_data[name] for name in self.values]
        comment = self.cleaned_data.get("comment", "")
        type(self).change(self.item.pk, int(version), self.user, *given, comment=comment, log=self.log)
        return Done(self.done, self.rows)


class Take(WorkItemOperation):
    """Assign an item, or its review, to oneself."""

    name, label, inline = "take", _("Assign to me"), _("Assignment")
    change, done = staticmethod(work.assign), _("It is yours now.")

    @cached_property
    def permitted(self) -> bool:
        """Whether the user may do it. What another person has is for those who assign."""
        user, topic = self.request.user, self.item.topic
        needed = REVIEW if self.item.state == IN_REVIEW else WORK
        return may_on(user, topic, needed) and (self.own or may_on(user, topic, ASSIGN))

    def fits(self) -> bool:
        """Tell whether the user does not have it, and may have it."""
        others = self.item.assignee != self.user and (self.item.state == OPEN or self.item.author != self.user)
        return bool(self.item.state != DONE and others)


class Release(Take):
    """Give an item back."""

    name, label = "release", _("Release")
    change, done = staticmethod(work.release), _("It is unassigned now.")

    def fits(self) -> bool:
        """Tell whether a user has it."""
        return bool(self.item.state != DONE and self.item.assignee)


class CommentedOperation(WorkItemOperation):
    """Something that a person may say more about."""

    comment = forms.CharField(
        label=_("Comment"), max_length=work.COMMENT_LENGTH, required=False, widget=forms.Textarea({"rows": 3})
    )


class Finish(CommentedOperation):
    """Decide. The fields are those of the payload type of the topic of decisions, or else of the item's own topic;
    without one it is JSON."""

    name, label, inline = "finish", _("Done"), _("Decide")
    permissions = (WORK,)
    change, done = staticmethod(work.finish), _("It is done.")
    values: Sequence[str] = ("result",)

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self._type, values = decision_type(self.item), decision_values(self.item)
        own, self._needed = fields_of(self._type.schema(), values) if self._type is not None else ({}, set())
        self._names = list(own)
        fields: dict[str, forms.Field] = {PREFIX + name: field for name, field in own.items()}
        if not own:
            start = self.item.result if self.item.result is not None else values or self.item.payload
            fields[WHOLE] = JSONTextField(label=_("Decision"), initial=start, required=False)
        fields["reviewer"] = UserField(
            self.item,
            (REVIEW,),
            label=_("Reviewer"),
            required=False,
            help_text=_("Whom to ask for a review; empty: any reviewer."),
        )
        self.fields = {**fields, **self.fields}

    def fits(self) -> bool:
        """Tell whether the item waits for the user's decision."""
        return self.item.state == OPEN and self.own

    def clean(self) -> dict[str, Any]:
        """Add the result: the decision, as JSON has it, without what was left empty and is not required. Refuse one
        that does not fit the payload type."""
        cleaned = self.cleaned_data
        if self.errors:
            return cleaned
        values = {name: cleaned[PREFIX + name] for name in self._names}
        result = {name: value for name, value in values.items() if value not in (None, "") or name in self._needed}
        cleaned["result"] = result if self._names else cleaned[WHOLE]
        if self._type is not None:
            try:
                self._type.convert(cleaned["result"])
            except PayloadMismatch as error:
                raise ValidationError(str(error)) from None
        return cleaned


class Submit(Finish):
    """Ask for a review of a decision."""

    name, label = "submit", _("Ask for a review")
    change, done = staticmethod(work.submit), _("A review is asked for.")
    values = ("result", "reviewer")


class Approve(CommentedOperation):
    """Make what was submitted the decision."""

    name, label, inline = "approve", _("Approve"), _("Review")
    permissions = (REVIEW,)
    change, done = staticmethod(work.approve), _("It is approved, and done.")

    def fits(self) -> bool:
        """Tell whether the item waits for the user's review."""
        return self.item.state == IN_REVIEW and self.own and self.item.author != self.user


class SendBack(Approve):
    """Refuse what was submitted."""

    name, label = "send-back", _("Send back")
    change, done = staticmethod(work.send_back), _("It is sent back.")


class Assign(CommentedOperation):
    """Give an item, or its review, to another user."""

    name, label, inline = "assign", _("Assign"), _("Assign to another")
    permissions = (ASSIGN,)
    change, done = staticmethod(work.assign), _("It is assigned.")
    values = ("user",)

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        needed = (REVIEW,) if self.item.state == IN_REVIEW else (WORK,)
        user = UserField(self.item, needed, label=_("User"), help_text=_("The user's name."))
        self.fields = {"user": user, **self.fields}

    def fits(self) -> bool:
        """Tell whether there is something left to do."""
        return self.item.state != DONE


class Later(CommentedOperation):
    """Put an item off."""

    name, label, inline = "later", _("Put off"), _("Put off")
    permissions = (WORK,)
    change, done = staticmethod(work.defer), _("It is put off.")
    values = ("until",)
    field_order = ("until", "comment")

    until = MomentField(label=_("Until"), help_text=_("in this site's time zone"))

    def fits(self) -> bool:
        """Tell whether the item waits for the user's decision."""
        return self.item.state == OPEN and self.own


class Comment(CommentedOperation):
    """Add a comment, whatever state the item has."""

    name, label, inline = "comment", _("Comment"), _("Add a comment")
    permissions = (WORK, REVIEW, ASSIGN)

    def __init__(self, *args: Any, **given: Any) -> None:
        super().__init__(*args, **given)
        self.fields["comment"].required = True

    def run(self) -> Done:
        """Add it."""
        work.add_comment(self.item.pk, self.user, self.cleaned_data["comment"], self.log)
        return Done(_("The comment is added."), self.rows)


OPERATIONS = (Take, Release, Finish, Submit, Approve, SendBack, Assign, Later, Comment)
