"""The pages of one shard, as an admin site of their own: what a page shows and does is on the shard of its URL."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _

from sqlqueue.conf import settings
from sqlqueue.core.keys import did_you_mean
from sqlqueue.exceptions import ConfigurationError


class ShardSite(AdminSite):
    """The queue's pages over one of SHARDS. `sqlqueue.admin.shard_site` makes one."""

    def __init__(self, shard: str):
        if shard not in settings.shards:
            raise ConfigurationError(f"SHARDS has no shard {shard!r}.{did_you_mean(shard, settings.shards)}")
        super().__init__(name=f"sqlqueue_{shard}")
        self._alias = settings.shards[shard]
        self.site_header = self.index_title = _("Shard %(shard)s") % {"shard": shard}
        self.site_title = self.site_header

    def admin_view(self, view: Callable[..., Any], cacheable: bool = False) -> Any:
        """Return a view that works on the shard, until its page is rendered."""
        inner = super().admin_view(view, cacheable)

        @wraps(inner)
        def on_shard(*args: Any, **options: Any) -> Any:
            with settings.at(self._alias):
                response = inner(*args, **options)
                return response.render() if isinstance(response, TemplateResponse) else response

        return on_shard
