"""A small site that publishes in async views; as a script it is served by uvicorn, on a free port of the loopback."""

import asyncio
import os
from typing import Any

import django
import uvicorn
from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation
from django.core.handlers.asgi import ASGIHandler
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup(set_prefix=False)

from sqlqueue import apublish, apublish_many, asubscribe, publish  # noqa: E402  the apps are ready only now
from tests.app.models import Effect  # noqa: E402


async def place(request: HttpRequest) -> JsonResponse:
    """Write a row and publish, on one connection."""
    number = int(request.GET["number"])
    await Effect.objects.acreate(name="order", value=str(number))
    published = await apublish("web", number, key=f"k{number % 3}", id=f"order-{number}")
    return JsonResponse({"created": published.created})


async def together(request: HttpRequest) -> JsonResponse:
    """Publish in several tasks of one request."""
    done = await asyncio.gather(*(apublish_many("web", [number, -number]) for number in range(1, 6)))
    return JsonResponse({"created": sum(each.created for each in done)})


async def in_a_transaction(request: HttpRequest) -> JsonResponse:
    """Write and publish in one transaction, which is rolled back if `fails` says so."""

    @transaction.atomic
    def write(number: int) -> None:
        Effect.objects.create(name="order", value=str(number))
        publish("web", number)
        if "fails" in request.GET:
            transaction.set_rollback(True)

    await sync_to_async(write)(int(request.GET["number"]))
    return JsonResponse({})


async def wrong(request: HttpRequest) -> JsonResponse:
    """Call the sync function."""
    try:
        publish("web", "wrong")
    except SynchronousOnlyOperation as error:
        return JsonResponse({"error": str(error)})
    return JsonResponse({})


async def take(request: HttpRequest) -> JsonResponse:
    """Receive a few messages."""
    count, found = int(request.GET["count"]), []
    async with asubscribe("web", group=request.GET["group"], timeout=60) as deliveries:
        async for delivery in deliveries:
            found.append(delivery.payload)
            await delivery.aack()
            if len(found) == count:
                break
    return JsonResponse({"payloads": found})


async def slow(request: HttpRequest) -> Any:
    """Publish, and then wait until the client is gone."""
    try:
        await apublish("web", "before")
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        await asyncio.shield(apublish("web", "its client is gone"))
        raise
    return JsonResponse({})


views = (place, together, in_a_transaction, wrong, take, slow)
urlpatterns = [path(f"{view.__name__}/", view) for view in views]


class Site(ASGIHandler):
    """Django's own handler, with these urls."""

    def create_request(self, scope: Any, body_file: Any) -> Any:
        request, error = super().create_request(scope, body_file)
        if request is not None:
            request.urlconf = __name__
        return request, error


if __name__ == "__main__":
    uvicorn.run(Site(), host="127.0.0.1", port=0, lifespan="off")
