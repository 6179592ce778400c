"""Who may do what: nothing in the queue's tables is edited by hand, and every verb has a permission of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest

from sqlqueue.conf import settings

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def may(request: HttpRequest, codename: str) -> bool:
    """Tell whether the user has one of the queue's permissions, such as "redeliver_message"."""
    return bool(request.user.has_perm(f"sqlqueue.{codename}"))


def require(request: HttpRequest, *codenames: str) -> None:
    """Raise PermissionDenied unless the user has all of the queue's permissions that are named."""
    for codename in codenames:
        if not may(request, codename):
            raise PermissionDenied


class ReadOnlyAdmin(ModelAdmin):
    """Shows a table on the queue's database to whoever may view it, and lets nobody edit it: the verbs do."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows on the queue's database, with or without the router."""
        return super().get_queryset(request).using(settings.DATABASE)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nobody adds rows by hand."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody edits rows by hand."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Nobody deletes rows by hand."""
        return False
