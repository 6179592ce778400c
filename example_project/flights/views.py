"""The home page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from example_project.flights.backlog import group_standings
from example_project.flights.models import Aircraft, Alert, PublishedBatch


def home(request: HttpRequest) -> HttpResponse:
    """Show what the site is, how far each group is, and where to look further."""
    context = {
        "published": PublishedBatch.objects.published_rows(),
        "aircraft": Aircraft.objects.count(),
        "alerts": Alert.objects.count(),
        "standings": group_standings(),
    }
    return render(request, "home.html", context)
