"""The connections of a process in which the engine runs are its own: a child that it forks abandons its copies, and
opens others.

Python deletes, in the child, what the parent's other threads have, before any code of the child runs; and a connection
that is deleted tells the server that it ends, over the socket that the parent goes on using. So all of them are held
from before the fork on.
"""

from __future__ import annotations

import os
import threading
from typing import Any
from weakref import WeakSet

from django.db import connections
from django.db.backends.signals import connection_created
from django.dispatch import receiver

from sqlqueue.core import forks
from sqlqueue.database import driver

_lock = threading.Lock()
_opened: WeakSet[Any] = WeakSet()  # Django's connections, of all threads
_held: dict[int, list[Any]] = {}  # by the thread that forks; in its child for good


@receiver(connection_created)
def _note(connection: Any, **_: Any) -> None:
    with _lock:
        _opened.add(connection)


def _hold() -> None:
    if forks.hosts():
        with _lock:
            opened = list(_opened)
        _held[threading.get_ident()] = [(one, one.connection) for one in opened if one.connection is not None]


def _release() -> None:
    _held.pop(threading.get_ident(), None)


def _abandon() -> None:
    global _lock
    _lock = threading.Lock()  # another thread of the parent may have had it
    held = _held.get(threading.get_ident())
    if held is None:
        return
    for connection, raw in list(held):
        driver.abandon(connection.vendor, raw)
        held.append(driver.taken_pools(connection))
    for connection in connections.all(initialized_only=True):
        held.append(connection)
        del connections[connection.alias]


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_abandon)
