"""An error as text: what `traceback.format_exception` says, sooner where it was raised at the same lines before.

A traceback looks up the source of each of its lines, and asks the file system whether that has changed. Handlers that
fail do so at few lines, and mostly many times.
"""

from __future__ import annotations

import traceback
from functools import lru_cache
from types import CodeType, TracebackType
from typing import NamedTuple

STACKS = 256  # of tracebacks whose lines are remembered
MOST_FRAMES = 50  # of a stack that is worth remembering
# What format_exception says of these depends on more than their stack: it proposes names.
PROPOSING = (NameError, AttributeError, ImportError, SyntaxError)


class Frame(NamedTuple):
    """Where a frame was. file: code of different files may be equal."""

    code: CodeType
    file: str
    instruction: int
    line: int


class Stack:
    """The frames of a traceback, which are its identity."""

    __slots__ = ("at", "frames")

    def __init__(self, at: TracebackType, frames: tuple[Frame, ...]):
        self.at: TracebackType | None = at
        self.frames = frames

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stack) and self.frames == other.frames

    def __hash__(self) -> int:
        return hash(self.frames)


def text_of(error: BaseException) -> str:
    """Return an error with its traceback, and with those of its causes, as text."""
    at = error.__traceback__
    chained = error.__cause__ is not None or (error.__context__ is not None and not error.__suppress_context__)
    if at is None or chained or isinstance(error, PROPOSING) or hasattr(error, "exceptions"):
        return "".join(traceback.format_exception(error))
    frames = _frames(at)
    if len(frames) > MOST_FRAMES:
        return "".join(traceback.format_exception(error))
    stack = Stack(at, frames)
    try:
        lines = _lines(stack)
    finally:
        stack.at = None  # what is remembered holds no frame, and so none of a handler's variables
    return "".join(["Traceback (most recent call last):\n", lines, *traceback.format_exception_only(error)])


@lru_cache(STACKS)
def _lines(stack: Stack) -> str:
    return "".join(traceback.format_tb(stack.at))


def _frames(at: TracebackType | None) -> tuple[Frame, ...]:
    frames: list[Frame] = []
    while at is not None and len(frames) <= MOST_FRAMES:
        code = at.tb_frame.f_code
        frames.append(Frame(code, code.co_filename, at.tb_lasti, at.tb_lineno))
        at = at.tb_next
    return tuple(frames)
