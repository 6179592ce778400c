"""The pages of one database, as an admin site of their own: what a page shows and does is on the database of its
URL."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from sqlqueue.conf import settings
from sqlqueue.log.placement import known_log


class DatabaseSite(AdminSite):
    """The queue's pages over one log. `sqlqueue.admin.database_site` makes one."""

    def __init__(self, database: str):
        super().__init__(name=f"sqlqueue_{database}")
        self._log = known_log(database)
        self.site_header = self.index_title = _("Database %(database)s") % {"database": database}
        self.site_title = self.site_header

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Return a view that works on the database, until its page is rendered."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def on_database(*args: Any, **options: Any) -> Any:
            with settings.at(self._log.alias):
                response = inner(*args, **options)
                return response.render() if isinstance(response, TemplateResponse) else response

        return on_database
