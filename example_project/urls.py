"""The site's URLs: the home page, the admin, the queue's endpoints, and the metrics."""

from django.contrib import admin
from django.urls import include, path

from example_project.flights.views import home
from example_project.seats.views import reserve

urlpatterns = [
    path("", home, name="home"),
    path("seats/", reserve, name="reserve"),
    path("admin/", admin.site.urls),
    path("queue/", include("sqlqueue.urls")),
    path("", include("django_prometheus.urls")),
]
