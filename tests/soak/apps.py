import os

from django.apps import AppConfig

from tests.soak.harm import HARM, lie_in_wait
from tests.soak.workload import SABOTAGE


class SoakConfig(AppConfig):
    """The handlers of a soak run and their table; installed in its processes only."""

    name = "tests.soak"
    label = "soak"

    def ready(self) -> None:
        """Plant the fault of this run, if every process has it, and what this process is to meet."""
        if name := os.environ.get(SABOTAGE):
            from tests.soak import sabotage  # it needs the models

            if name in sabotage.EVERYWHERE:
                sabotage.commit(name)
        if harm := os.environ.get(HARM):
            lie_in_wait(harm)
