"""The models of pages in the admin that have no table of their own."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from sqlqueue.models.message import Message
from sqlqueue.models.topic import Topic


class Overview(Topic):
    """A proxy without a table: it lists the overview page in the admin's index, and has its permission."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("overview")
        verbose_name_plural = _("overview")


class DeadLetter(Message):
    """A proxy without a table: it lists the pages of dead letters in the admin's index. They need the permission to
    view messages."""

    class Meta:
        proxy = True
        default_permissions = ()
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
