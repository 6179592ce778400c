"""Handlers that no process can import which a supervisor has started."""

from multiprocessing import parent_process

from tests.management import handlers as handlers

if parent_process() is not None:
    raise RuntimeError("no room for me")
