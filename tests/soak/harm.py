"""Harms the process that changes partitions from inside: only so is it met in the middle of a transaction for sure."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import wraps
from typing import Any

HARM = "SOAK_HARM"  # the environment's variable that says how: a signal's number, and in which transaction


def lie_in_wait(text: str) -> None:
    """Let this process send itself a signal in the n-th transaction that changes layouts, once that has begun."""
    from sqlqueue.operations import repartition

    signal_number, at = map(int, text.split())
    transactions = itertools.count(1)

    def harmed(step: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(step)
        def taken(*args: Any, **options: Any) -> Any:
            result = step(*args, **options)
            if next(transactions) == at:
                os.kill(os.getpid(), signal_number)
            return result

        return taken

    repartition.take_duty = harmed(repartition.take_duty)
