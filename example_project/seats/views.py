"""The reply to a passenger who wants seats."""

from __future__ import annotations

from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from example_project.seats.forms import ReservationForm
from example_project.seats.reserving import reserve_seats
from sqlqueue import CallFailed


@require_POST
def reserve(request: HttpRequest) -> JsonResponse:
    """Reserve seats, and show what a consumer process has replied."""
    form = ReservationForm(request.POST)
    if not form.is_valid():
        return JsonResponse({"errors": form.errors}, status=400)
    try:
        return JsonResponse(reserve_seats(**form.cleaned_data))
    except CallFailed as failed:
        return JsonResponse({"errors": {"flight": [failed.error]}}, status=404)
    except TimeoutError:
        return JsonResponse({"errors": {"__all__": ["no reply in time: is runconsumers running?"]}}, status=503)
