"""The home page."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from example_project.flights.backlog import group_backlogs
from example_project.flights.models import Aircraft, Alert, PublishedBatch
from example_project.seats.forms import ReservationForm


def home(request: HttpRequest) -> HttpResponse:
    """Show the purpose of the site, each group's backlog, and links to the admin."""
    context = {
        "published": PublishedBatch.objects.published_rows(),
        "aircraft": Aircraft.objects.count(),
        "alerts": Alert.objects.count(),
        "backlogs": group_backlogs(),
        "reservation": ReservationForm(),
    }
    return render(request, "home.html", context)
