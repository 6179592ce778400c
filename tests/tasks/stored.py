"""What is stored of tasks."""

from typing import Any

from sqlqueue.models import Result
from sqlqueue.tasks.states import TaskState
from tests.logs import LOG


def states() -> list[TaskState]:
    """Return the states of all tasks."""
    return [TaskState.of(row) for row in Result.objects.exclude(task=None)]


def state_of(id: str) -> TaskState:
    """Return the state of a task."""
    return TaskState.of(Result.objects.get(message_id=id))


def only_state() -> TaskState:
    """Return the state of the only task."""
    (state,) = states()
    return state


def change(id: str | None = None, **values: Any) -> None:
    """Change what was enqueued, or how it stands, of one task, or of the only one."""
    state = only_state() if id is None else state_of(id)
    for name, value in values.items():
        if name in state.task:
            state.task = {**state.task, name: value}
        else:
            setattr(state, name, value)
    Result.objects.filter(message_id=state.id).delete()
    state.insert(LOG)
