"""The tests' site: the admin, the queue's endpoints, and the metrics."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("queue/", include("sqlqueue.urls")),
    path("", include("django_prometheus.urls")),
]
