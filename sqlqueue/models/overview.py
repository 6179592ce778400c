"""The model of the admin's overview page."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from sqlqueue.models.topic import Topic


class Overview(Topic):
    """A proxy without a table: it lists the overview page in the admin's index, and has its permission."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
