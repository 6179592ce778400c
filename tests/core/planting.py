"""Faults planted in the engine's own lines: some words of a function replaced by others, as a careless hand would."""

from __future__ import annotations
import __future__

import inspect
import textwrap
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import pytest


class Fault(NamedTuple):
    """A function of a class or a module, some words of its source, and others instead."""

    owner: type | ModuleType
    name: str
    words: str
    instead: str

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Let its owner have the faulty function until the patch is undone."""
        patch.setattr(self.owner, self.name, self._faulty())

    def _faulty(self) -> object:
        sound = vars(self.owner)[self.name]
        function: Callable[..., Any] = sound.fget if isinstance(sound, property) else sound
        source = textwrap.dedent(inspect.getsource(function))
        assert source.count(self.words) == 1, f"{self.words!r} is not in {self.owner.__name__}.{self.name} once"
        names: dict[str, object] = {}
        text = source.replace(self.words, self.instead)
        exec(compile(text, self.name, "exec", __future__.annotations.compiler_flag), function.__globals__, names)
        return names[self.name]
