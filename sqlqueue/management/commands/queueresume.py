"""Resuming a paused topic or group (`queueresume`)."""

from __future__ import annotations

from sqlqueue.management.commands import queuepause
from sqlqueue.operations.topics import resume


class Command(queuepause.Command):
    """Resumes. It is no error if the topic or group is not paused: exit code 0 means that it is not paused."""

    help = "Resume a topic, or one group of it, that queuepause has paused."
    change = staticmethod(resume)
    changed = "Resumed {}."
    unchanged = "There was nothing to do: {} was not paused."
