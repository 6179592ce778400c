"""The settings task of `runconsumers`: stores topic options that were locked when it started."""

from __future__ import annotations

from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.log import Log
from sqlqueue.log.topic_options import apply_settings

APPLY_INTERVAL = 1.0  # seconds


class SettingsTask(BackgroundTask):
    """Applies the settings to topics that were locked before; ends when all topics have them."""

    name = "settings"

    def __init__(self, log: Log):
        super().__init__(log, APPLY_INTERVAL)

    def run_once(self) -> bool:
        """Apply the settings to the topics that are left."""
        self._stopping = not apply_settings(self.log) or self._stopping
        return False
