"""Permissions: users cannot edit the queue's tables, and every operation has a permission of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import URLPattern

from sqlqueue.admin.readable import with_harmless_page
from sqlqueue.core.outcomes import storable
from sqlqueue.database.log import current_log

if TYPE_CHECKING:
    ModelAdmin = admin.ModelAdmin[Any]
else:
    ModelAdmin = admin.ModelAdmin


def may(request: HttpRequest, codename: str) -> bool:
    """Tell whether the user has one of the queue's permissions, such as "redeliver_message", or another app's, such as
    "sqlqueue_people.view_workitem"."""
    return bool(request.user.has_perm(codename if "." in codename else f"sqlqueue.{codename}"))


def require(request: HttpRequest, *codenames: str) -> None:
    """Raise PermissionDenied unless the user has all of the queue's permissions that are named."""
    for codename in codenames:
        if not may(request, codename):
            raise PermissionDenied


def user_name(request: HttpRequest) -> str:
    """Return the user's name as the queue's tables keep it: text, also where a project's user model names users by
    UUIDs or numbers."""
    return str(request.user.get_username())


class ReadOnlyAdmin(ModelAdmin):
    """Shows a table of the queue's database to users who may view it. Only operations change it."""

    @property
    def urls(self) -> list[URLPattern]:
        """The URLs of its pages, on which nothing is obeyed by a browser."""
        patterns: list[URLPattern] = self.get_urls()
        for one in patterns:
            one.callback = with_harmless_page(one.callback)
        return patterns

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        """Return the rows on the queue's database, whether its router is installed or not."""
        return super().get_queryset(request).using(current_log().alias)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """Return the row with the key of a URL, None if there is none. The key may have characters that a database
        refuses."""
        return super().get_object(request, storable(object_id), from_field)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: only operations add rows."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: only operations change rows."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Return False: only operations delete rows."""
        return False
