"""The garbage collector of a consumer process, which looks for cycles less often, and not among what is loaded.

A message in memory is some ten objects until it is settled. With Python's thresholds, and with all of Django's objects
to walk through, the search for cycles among them is a third of what a batch handler that does nothing costs.
"""

from __future__ import annotations

import gc

# Objects more than before, until the youngest are looked through; how long a string among them is does not count.
LOOK_EVERY = 10_000


def look_less_often() -> None:
    """Exempt from the garbage collector what is loaded by now, and let it look through the rest every 10,000 objects.
    For a process that does nothing else. A collector that is off, or looks even less often, stays as it is."""
    every, *others = gc.get_threshold()
    if not gc.isenabled() or not every:
        return
    gc.set_threshold(max(every, LOOK_EVERY), *others)
    gc.collect()  # what is exempt is never freed
    gc.freeze()
