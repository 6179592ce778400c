"""How much of a partition is kept in memory, or read with one statement."""

from __future__ import annotations

from typing import Final

HEADS_LIMIT: Final = 100_000  # messages that wait by their own outcome; beyond it nothing new is read
WINDOW_LIMIT: Final = 10_000  # messages read onward and not yet passed by the position
SCAN_LIMIT: Final = 5_000  # messages of a partition that one scan for those of a waiting key passes
