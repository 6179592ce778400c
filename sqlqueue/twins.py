"""Async twins: what a sync function is in async code, and how the sync one is refused there."""

from __future__ import annotations

import functools
import os
from asyncio import _get_running_loop  # None without one, where the public get_running_loop() raises, slowly
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async
from django.core.exceptions import SynchronousOnlyOperation

P = ParamSpec("P")
R = TypeVar("R")


def refuse_in_async(name: str, instead: str) -> None:
    """Raise SynchronousOnlyOperation in a thread that runs an event loop, which this sync call would block; `instead`
    is what to write there. As all of Django, it lets DJANGO_ALLOW_ASYNC_UNSAFE have its way.
    """
    if _get_running_loop() is not None and not os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE"):
        raise SynchronousOnlyOperation(
            f"{name}() would block the event loop of this async code: write `{instead}`. A transaction, with all that "
            "is in it, is one function for sync_to_async."
        )


def async_twin(call: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """Return the async twin of a sync function: a coroutine function with `a` before its name, and its arguments.

    It runs the function in the thread, and so on the connection, of the caller's other database calls (sync_to_async,
    thread-sensitive), in the caller's context (contextvars). Cancelled, it is not called if it still waits for that
    thread; if it runs already, it runs on and its result is lost.
    """
    in_thread = sync_to_async(call)

    @functools.wraps(call)
    async def twin(*args: P.args, **options: P.kwargs) -> R:
        return await in_thread(*args, **options)

    twin.__name__ = twin.__qualname__ = f"a{call.__name__}"
    twin.__doc__ = f"The async twin of {call.__name__}, in the thread of the caller's other database calls.\n\n" + (
        call.__doc__ or ""
    )
    return twin
