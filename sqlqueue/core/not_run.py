"""Functions whose call runs none of their code: it returns an awaitable or a generator, which stands for it. Pure."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Final

from asgiref.sync import iscoroutinefunction

from sqlqueue.exceptions import NotRun

UNRUN: Final = (Awaitable, Generator, AsyncGenerator)


def is_async(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives an awaitable, as far as it shows: an `async def`, an object whose
    `__call__` is one, and what is marked as one."""
    return bool(iscoroutinefunction(function) or iscoroutinefunction(_called(function)))


def is_generator(function: Callable[..., Any]) -> bool:
    """Tell whether calling a function gives a generator, sync or async: it has a `yield`, or its `__call__` has."""
    both = function, _called(function)
    return any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in both)


def check_has_run(returned: Any, name: str) -> None:
    """Raise NotRun if a function of this name has returned an awaitable or a generator."""
    if returned is None or not isinstance(returned, UNRUN):
        return
    what = f"a {type(returned).__name__}"
    if label := getattr(returned, "__qualname__", ""):
        what += f" of {label}"
    if isinstance(returned, Awaitable):
        if inspect.iscoroutine(returned):
            returned.close()  # else Python would warn, too, once it is deleted
        cure = "make it an `async def` that awaits this; a decorator of an `async def` has to return one, too"
    else:
        cure = "go through it, or leave the `yield` out"
    raise NotRun(f"{name} returned {what}, and none of its code has run: {cure}")


def _called(function: Callable[..., Any]) -> Any:
    return getattr(function, "__call__", None)  # noqa: B004  what an object runs when it is called
