"""The site's two rooms: the home page and the admin."""

from django.contrib import admin
from django.urls import path

from example_project.flights.views import home

urlpatterns = [
    path("", home, name="home"),
    path("admin/", admin.site.urls),
]
