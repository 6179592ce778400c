"""A thread that is connected to another node of a cluster than the named one says so once, not each time it looks.
(log/test_forwarding has the servers.)"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from sqlqueue.consumers.background import task as task_module
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.database.server_identity import NotNamedServer, ServerIdentity
from tests.consuming import Consuming
from tests.logs import LOG

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

Look = Callable[[str], None]


@pytest.fixture(params=["task", "loop", "renewer", "start"])
def look(request: pytest.FixtureRequest, consuming: Consuming, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """Let a thread look at its server, which is not the one of this name; "": it is the named one."""
    named = [""]

    def found(*_: object) -> None:
        if named[0]:
            raise NotNamedServer(f"one of {id(object())}", named[0])

    consuming.consumer("t", lambda delivery: None, group="g")
    subscriber = consuming.subscriber(background_tasks=False)
    task = BackgroundTask(LOG, "task", 1.0)
    subscriber.start()
    monkeypatch.setattr(task, "run_once", lambda: bool(found()))
    monkeypatch.setattr(ServerIdentity, "make_sure", found)
    monkeypatch.setattr(ServerIdentity, "proof", lambda server: found() or ("", ()))

    def look(writer: str) -> None:
        named[0] = writer
        if request.param == "task":
            task._guarded(task.run_once)
        elif request.param == "loop":
            subscriber.run_once_guarded()
        elif request.param == "renewer":
            subscriber._lease_renewer._guarded(subscriber._lease_renewer.run_once)
        elif writer:
            monkeypatch.setattr(
                "sqlqueue.consumers.engine.subscriber.time.sleep", lambda seconds: named.__setitem__(0, "")
            )
            subscriber._find_named_server()
        else:
            subscriber.run_once_guarded()

    yield look
    named[0] = ""
    subscriber.close()


def test_it_says_so_once_and_again_when_that_has_changed(
    look: Look, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said() -> int:
        found = [record for record in caplog.records if "not_the_named_server" in record.getMessage()]
        caplog.clear()
        return len(found)

    counts = []
    for writer in ("n1", "n1", "-n1", "n1", "n2", "n2", "", "", "n2", "n2"):
        look(writer)
        counts.append(said())
    assert counts == [1, 0, 0, 0, 1, 0, 0, 0, 1, 0]
    monkeypatch.setattr(task_module, "AGAIN", 0.0)  # long ago
    for writer in ("n3", "n3", "n3"):
        look(writer)
    assert said() == 3
