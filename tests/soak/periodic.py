"""Pauses, resumes and ends the periodic schedules of a run, as an operator does."""

import time
from collections.abc import Collection

from sqlqueue.database.log import Log
from tests.soak.history import Journal
from tests.soak.nemesis import insistently


class PausedTicks:
    """A context in which no schedule ticks. Its line says since when."""

    def __init__(self, journal: Journal) -> None:
        self._journal, self._since = journal, 0.0

    def __enter__(self) -> None:
        from sqlqueue.models import PeriodicSchedule

        self._since = time.monotonic()
        insistently(lambda: PeriodicSchedule.objects.update(paused=True))

    def __exit__(self, *_: object) -> None:
        from sqlqueue.conf import settings
        from sqlqueue.models import PeriodicSchedule
        from sqlqueue.operations.periodic import resume

        def resume_all() -> None:
            for name in PeriodicSchedule.objects.values_list("name", flat=True):
                resume(Log.of(settings.DATABASE), name)

        insistently(resume_all)
        self._journal.note("ticks-paused", self._since)


def end_ticks(deadline: float, schedules: Collection[str]) -> dict[str, tuple[float, float]]:
    """Pause each of these schedules at a moment at which none of its ticks is due; return between which moments of the
    database's clock that was. One that is never so until the deadline is left out, and ticks on."""
    from sqlqueue.conf import settings
    from sqlqueue.database import clock
    from sqlqueue.database.fields import DatabaseNow
    from sqlqueue.models import PeriodicSchedule

    ended: dict[str, tuple[float, float]] = {}
    while len(ended) < len(schedules) and time.monotonic() < deadline:
        for name in {*schedules} - ended.keys():
            row = PeriodicSchedule.objects.filter(name=name, next_tick__gt=DatabaseNow())
            before = clock.now(Log.of(settings.DATABASE)).timestamp()
            if row.update(paused=True):
                ended[name] = before, clock.now(Log.of(settings.DATABASE)).timestamp()
        time.sleep(0.05)
    return ended
