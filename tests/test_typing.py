"""What type checkers say of a project that uses sqlqueue: each mistake is an error of its line, and nothing else is."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sqlqueue.consumers.declare import options as typed
from sqlqueue.consumers.declare.registry import DEFAULTS
from sqlqueue.core.new_message import NewMessage, PublishOptions

# Lines with "MISTAKE" behind them are wrong, all others are right.
PROJECT = """
from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from typing_extensions import assert_type

from sqlqueue import Batch, Delivery, NewMessage, asubscribe, consumer, periodic, publish_on_commit, subscribe


@dataclass
class Order:
    number: int


@consumer("orders", group="1", visibility_timeout=timedelta(seconds=3), retry_for=ValueError, backoff=lambda _: 2.0)
def plain(delivery: Delivery) -> None:
    print(delivery.payload["number"], delivery.payload.anything)


@consumer("orders", group="2", payload_type=Order)
def typed(delivery: Delivery[Order]) -> int:
    assert_type(delivery.payload, Order)
    return delivery.payload.nmber  # MISTAKE


@consumer("orders", group="3", payload_type="shop.types.Order", batch=True)
def named_batch(deliveries: list[Delivery]) -> None: ...


@consumer("orders", group="4", payload_type=Order, batch=True, atomic=True)
def typed_batch(deliveries: list[Delivery[Order]]) -> None:
    assert_type(deliveries[0].payload.number, int)


@consumer("typed-orders")
async def of_the_topic(delivery: Delivery[Order]) -> None: ...


@periodic(every=60, missed="all", max_attempts=None)
def tick(delivery: Delivery) -> None: ...


@consumer("orders", group="5")
def kept(delivery: Any, extra: int = 3) -> str:
    return ""


assert_type(kept(None, extra=4), str)


@consumer("orders", group="a", visibilty_timeout=3)  # MISTAKE
def one(delivery: Delivery) -> None: ...


@consumer("orders", group="b", max_attempts="three")  # MISTAKE
def two(delivery: Delivery) -> None: ...


@consumer("orders", group="c", ordering="keys")  # MISTAKE
def three(delivery: Delivery) -> None: ...


@consumer("orders", group="d")  # MISTAKE
def four(delivery: int, other: str) -> None: ...


@consumer("orders", group="e", batch=True)  # MISTAKE
def five(delivery: Delivery) -> None: ...


@periodic("0 3 * * *", visibilty=4)  # MISTAKE
def six(delivery: Delivery) -> None: ...


@consumer("orders", group="f", payload_type=Order)  # MISTAKE
def untyped(delivery: Delivery) -> None: ...


def publishes() -> None:
    publish_on_commit("orders", {}, key="k", delay=3)
    publish_on_commit("orders", {}, kye="k")  # MISTAKE
    with subscribe("orders", group="a", ordering="none", payload_type=Order) as deliveries:
        for delivery in deliveries:
            delivery.ack()
    with subscribe("orders", grp="a"):  # MISTAKE
        pass
    with Batch(name="b") as batch:
        batch.publish("orders", {}, priority=1)
        batch.publish("orders", {}, priority="high")  # MISTAKE
        batch.publish_many("orders", [NewMessage({}, key="a")])


async def receives() -> None:
    async with asubscribe("orders", group="a", batch_size=5) as deliveries:
        async for delivery in deliveries:
            await delivery.aack()
    async with asubscribe("orders", atomic=True):  # MISTAKE
        pass
"""

# The same of tasks, which only Pyright's family could not see.
TASKS = """
from sqlqueue.tasks import task


@task
def send_mail(to: str) -> dict[str, str]:
    return {"sent": to}


send_mail.enqueue("a@example.com")
send_mail.enqueue("a@example.com", wrong=4)  # MISTAKE
"""


def lines_of_mistakes(source: str) -> list[int]:
    return [number for number, line in enumerate(source.splitlines(), 1) if "# MISTAKE" in line]


def said_by_mypy(file: Path) -> list[int]:
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--hide-error-context",
        "--cache-dir",
        str(file.parent),
        file.name,
    ]
    ran = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return sorted({int(found[1]) for found in re.finditer(rf"^{file.name}:(\d+): error", ran.stdout, re.MULTILINE)})


def said_by_pyright(file: Path) -> list[int]:
    command = [sys.executable, "-m", "basedpyright", "--level", "error", "--outputjson", file.name]
    command += ["--pythonpath", sys.executable]
    ran = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, timeout=250, check=False)
    assert ran.returncode in (0, 1), ran.stdout + ran.stderr
    return sorted({1 + one["range"]["start"]["line"] for one in json.loads(ran.stdout)["generalDiagnostics"]})


@pytest.mark.once
@pytest.mark.parametrize("said", [said_by_mypy, said_by_pyright])
def test_each_mistake_is_an_error_and_nothing_else_is(said, tmp_path):
    file = tmp_path / "project.py"
    file.write_text(PROJECT)

    assert said(file) == lines_of_mistakes(PROJECT)


@pytest.mark.once
def test_pyright_knows_what_a_task_takes(tmp_path):
    file = tmp_path / "tasks.py"
    file.write_text(TASKS)

    assert said_by_pyright(file) == lines_of_mistakes(TASKS)


def test_type_checkers_are_shown_the_options_that_there_are():
    handler = typed.HandlerOptions.__annotations__.keys() | typed.SharedOptions.__annotations__.keys()
    pulled = typed.PullOptions.__annotations__.keys() | typed.SharedOptions.__annotations__.keys()

    assert handler == DEFAULTS.keys() - {"group", "batch", "payload_type"}
    assert pulled == DEFAULTS.keys() - {"group", "batch", "atomic", "commit_every"}


def test_type_checkers_are_shown_what_a_message_takes():
    shown = list(PublishOptions.__annotations__)

    assert shown == [name for name in inspect.signature(NewMessage).parameters if name != "payload"]
