"""A project's own admin site, which has registered the queue's pages by itself."""

from django.contrib import admin
from django.urls import path

from sqlqueue.admin import register

site = admin.AdminSite(name="operations")
register(site)

urlpatterns = [path("operations/", site.urls)]
