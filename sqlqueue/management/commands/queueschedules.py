"""Periodic schedules: list, upcoming, pause, resume, run, remove (`queueschedules`)."""

from __future__ import annotations

from argparse import ArgumentParser
from datetime import datetime
from typing import Any

from sqlqueue.management import arguments
from sqlqueue.management.base import QueueCommand
from sqlqueue.operations.periodic import (
    MOST_DAYS,
    MOST_UPCOMING,
    definition_of,
    pause,
    remove,
    resume,
    run_now,
    schedules,
    upcoming,
)

NONE_STORED = "There are no periodic schedules: the consumer processes store them when they start."


class Command(QueueCommand):
    """Has the operations list, upcoming, pause, resume, run and remove."""

    home_database = ("list", "upcoming", "pause", "resume", "run", "remove")
    help = "List periodic schedules and what they will do; pause, resume, run or remove one."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the operations, each with its arguments."""
        operations = self.operations(parser)
        self.operation(
            operations, "list", self._list, "show the schedules that the consumer processes have declared", json=True
        )
        coming = self.operation(
            operations, "upcoming", self._upcoming, f"show the next ticks, at most {MOST_UPCOMING:,}", json=True
        )
        coming.add_argument("name", nargs="?", default="", help="only of this schedule")
        coming.add_argument(
            "--days", type=arguments.decimal(0, MOST_DAYS), default=7.0, help="of so many days (default: 7)"
        )
        for name, act, text in (
            ("pause", self._pause, "let a schedule publish no ticks until it is resumed"),
            ("resume", self._resume, "resume a schedule; its option `missed` says what is published of what fell due"),
            ("run", self._run, "publish what a schedule publishes, now and besides its ticks"),
            ("remove", self._remove, "forget a schedule that is no longer in the code"),
        ):
            self.operation(operations, name, act, text).add_argument("name")

    def _list(self, options: dict[str, Any]) -> None:
        log = self.reading_log()
        found = schedules(log)
        if self.json:
            self.as_json(found)
            return
        if not found:
            self.say(NONE_STORED)
            return
        self.table(
            ("name", "when", "topic", "group", "missed", "last", "next", "state"),
            [
                (
                    one.name,
                    one.recurrence,
                    one.topic,
                    one.group or "(all)",
                    one.missed,
                    _time(one.last_tick),
                    _time(one.next_tick),
                    one.state if one.state != "active" else "",
                )
                for one in found
            ],
        )
        for one in found:
            if one.refusal:
                self.note(f"{one.name}: {one.refusal}")

    def _upcoming(self, options: dict[str, Any]) -> None:
        if options["name"]:
            definition_of(self.log, options["name"])
        found = upcoming(self.log, options["days"], options["name"])
        if self.json:
            self.as_json([tick._asdict() for tick in found])
            return
        if not found and not schedules(self.log):
            self.say(NONE_STORED)
            return
        if not found:
            self.say(f"Nothing is due in {options['days']:g} days.")
            return
        self.table(("due (UTC)", "schedule"), [(_time(tick.due), tick.schedule) for tick in found])
        if len(found) == MOST_UPCOMING:
            self.note(f"There may be more: {MOST_UPCOMING:,} are shown at most.")

    def _pause(self, options: dict[str, Any]) -> None:
        changed = pause(self.log, options["name"])
        self.say(f"{options['name']} {'is paused' if changed else 'was already paused'}.", done=changed)

    def _resume(self, options: dict[str, Any]) -> None:
        changed = resume(self.log, options["name"])
        self.say(f"{options['name']} {'is resumed' if changed else 'was not paused'}.", done=changed)

    def _run(self, options: dict[str, Any]) -> None:
        self.say(f"Published {run_now(self.log, options['name']).id}.", done=True)

    def _remove(self, options: dict[str, Any]) -> None:
        remove(self.log, options["name"])
        self.say(f"{options['name']} is removed.", done=True)


def _time(moment: datetime | None) -> str:
    return "—" if moment is None else f"{moment:%Y-%m-%d %H:%M:%S}"
