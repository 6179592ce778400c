"""`path("queue/", include("sqlqueue.urls"))` puts the endpoints into a site."""

from __future__ import annotations

from django.urls import path

from sqlqueue.api import views

app_name = "sqlqueue"
urlpatterns = [
    path("health/live", views.live, name="live"),
    path("health/ready", views.ready, name="ready"),
    path("health/", views.health, name="health"),
    path("status/", views.status, name="status"),
    path("message/", views.message, name="message"),
    path("openapi.json", views.openapi, name="openapi"),
]
