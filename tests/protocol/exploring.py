"""How many examples the machines are given, and the proof that they can fail.

In the suite they are few, and the same in every run; PROTOCOL_EXAMPLES=2000 gives every machine so many new ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.errors import Flaky
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.logs import LOG
from tests.protocol.stage import stage

EXAMPLES = int(os.environ.get("PROTOCOL_EXAMPLES", "0"))
UNTIL_FOUND = 1_500  # examples within which a planted fault must show; nearly always it takes a few


class Broken(AssertionError):
    """A promise of the protocol is broken; `said` keeps what was said of it, however the exploring ends."""

    said: ClassVar[list[str]] = []

    def __init__(self, what: str):
        super().__init__(what)
        self.said.append(what)


def promise(kept: object, what: str) -> None:
    """Raise Broken with `what` unless it is kept."""
    if not kept:
        raise Broken(what)


def _settings(examples: int, steps: int, **options: Any) -> settings:
    return settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        **options,
    )


def explore(machine: type[RuleBasedStateMachine], actors: tuple[str, ...], examples: int, steps: int) -> None:
    """Give a machine its examples, all on one stage; it finds the stage in `machine.stage`."""
    with stage(*actors) as machine.stage:
        phases = (Phase.generate, Phase.shrink)  # to explain would mean to trace every line
        chosen = _settings(EXAMPLES or examples, steps, derandomize=not EXAMPLES, phases=phases)
        run_state_machine_as_test(machine, settings=chosen)


class Rewriting:
    """Statements in which some words are replaced by others: a fault as a careless hand would make it."""

    def __init__(self, *replacements: tuple[str, str]):
        self._replacements = replacements
        self.hits = 0

    def __call__(self, sql: str) -> str:
        """Return the statement as it is executed."""
        words = LOG.dialect  # statements are composed: every name in them is quoted
        for old, new in self._replacements:
            self.hits += words.sql(old) in sql
            sql = sql.replace(words.sql(old), words.sql(new))
        return sql


def finds(
    machine: type[RuleBasedStateMachine], actors: tuple[str, ...], steps: int, rewrite: Callable[[str], str] = str
) -> str:
    """Return what a machine says of the fault that is planted while this is called; fail if it does not notice."""
    Broken.said.clear()
    chosen = _settings(UNTIL_FOUND, steps, derandomize=True, phases=(Phase.generate,))
    # Flaky: it was found, and how the threads' time was shared out kept it from being found again the same way.
    with stage(*actors, rewrite=rewrite) as machine.stage, pytest.raises((Broken, Flaky)):
        run_state_machine_as_test(machine, settings=chosen)
    if isinstance(rewrite, Rewriting):
        assert rewrite.hits, "no statement has these words any more"
    return "\n".join(Broken.said)
