"""What the admin's overview page hangs on."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from sqlqueue.models.topic import Topic


class Overview(Topic):
    """No table of its own: it gives the overview page a place in every admin site's list, and a permission."""

    class Meta:
        proxy = True
        default_permissions = ("view",)
        verbose_name = _("overview")
        verbose_name_plural = _("overview")
