"""A server that may have forgotten what it has shown is told from one to which only a connection was lost, and from the
one to which a connection leads unnoticed."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections

from sqlqueue.database import server_session
from sqlqueue.database.server_identity import ServerChanged, ServerIdentity, SessionReplaced, look, select
from sqlqueue.database.server_session import Session
from tests.logs import LOG
from tests.servers.private import PrivateServer
from tests.servers.session import crash_a_process

pytestmark = [pytest.mark.django_db(transaction=True)]
SERVERS = pytest.mark.database("mariadb", "mysql", "postgresql")


@pytest.fixture
def known() -> ServerIdentity:
    """A server that has been looked at."""
    server = ServerIdentity(LOG)
    server.make_sure()
    return server


@pytest.fixture
def looks() -> Iterator[Callable[..., Future[Session]]]:
    """Looks at a server in a thread of its own; with `hangs` the first statement of it takes until the test's end, or
    until that event."""
    ended: list[threading.Event] = []

    def look_there(server: ServerIdentity, hangs: threading.Event | None = None) -> Session:
        def hang(execute: Callable[..., Any], *given: Any) -> Any:
            if hangs is not None:
                asked.set()
                assert hangs.wait(60)
            return execute(*given)

        try:
            with connection.execute_wrapper(hang):
                return server.session
        finally:
            connections.close_all()

    def begin(server: ServerIdentity, hangs: threading.Event | None = None) -> Future[Session]:
        asked.clear()
        ended.extend([hangs] if hangs else [])
        looking = pool.submit(look_there, server, hangs)
        assert hangs is None or asked.wait(30)
        return looking

    asked = threading.Event()
    with ThreadPoolExecutor() as pool:
        try:
            yield begin
        finally:
            for event in ended:
                event.set()


def proves(server: ServerIdentity) -> bool:
    text, values = server.proof()
    return bool(LOG.execute(f"SELECT CASE WHEN {text} THEN 1 ELSE 0 END", values).fetchone()[0])


@SERVERS
def test_a_lost_connection_alone_changes_nothing(known: ServerIdentity) -> None:
    connection.close()
    assert proves(known)
    known.doubtful = True
    known.make_sure()
    assert not known.doubtful


@SERVERS
def test_a_look_that_hangs_keeps_no_other_thread_from_looking(looks: Callable[..., Future[Session]]) -> None:
    looks(ServerIdentity(LOG), hangs=threading.Event())
    assert looks(ServerIdentity(LOG)).result(timeout=10).identity


@SERVERS
def test_of_two_looks_at_once_the_one_that_ends_first_counts(looks: Callable[..., Future[Session]]) -> None:
    server, answers = ServerIdentity(LOG), threading.Event()
    late = looks(server, hangs=answers)
    first = looks(server).result(timeout=10)
    answers.set()
    assert late.result(timeout=10) is first is server.session


@SERVERS
def test_every_connection_can_prove_the_server(known: ServerIdentity) -> None:
    connection.close()
    assert proves(known)
    assert select(LOG, "SELECT 7, 'seven'", (), known, 2, 0)[0][0] == 7
    known.confirm()


@pytest.mark.database("mariadb", "postgresql")
@pytest.mark.parametrize("way", ["restart", "crash"])
def test_a_restart_is_a_change(database_server: PrivateServer, known: ServerIdentity, way: str) -> None:
    if way == "restart":
        database_server.restart()
    else:
        database_server.kill()
        database_server.start()
    connection.close()
    with pytest.raises((ServerChanged, SessionReplaced)):
        known.confirm()
    with pytest.raises(ServerChanged):
        known.make_sure()
    ServerIdentity(LOG).confirm()


@pytest.mark.database("postgresql")
def test_the_crash_of_one_of_its_processes_is_a_change_although_the_server_lives_on(
    database_server: PrivateServer, known: ServerIdentity
) -> None:
    pid = database_server.pid
    crash_a_process()
    with pytest.raises(SessionReplaced):
        known.confirm()
    with pytest.raises(ServerChanged):
        known.make_sure()
    assert database_server.pid == pid
    ServerIdentity(LOG).confirm()


@pytest.mark.database("mariadb", "mysql")
def test_another_session_under_the_same_connection_is_noticed_and_looked_at(known: ServerIdentity) -> None:
    LOG.execute("SET @sqlqueue_session = NULL")  # as in a session that a proxy has put in its place
    with pytest.raises(SessionReplaced):
        select(LOG, "SELECT 7 WHERE 1 = 0", (), known, 1, 0)
    assert known.doubtful
    known.make_sure()
    assert select(LOG, "SELECT 7 WHERE 1 = 0", (), known, 1, 0) == ()


@pytest.mark.database("mariadb", "mysql")
def test_a_statement_that_is_repeated_in_another_session_gives_it_another_mark() -> None:
    assert look(LOG).values != look(LOG).values
    assert look(LOG).identity == look(LOG).identity


@pytest.mark.database("mariadb", "mysql")
def test_a_server_whose_clock_was_set_back_since_its_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOOK_MARIADB", "LOOK_MYSQL"):
        text = getattr(server_session, name)
        monkeypatch.setattr(server_session, name, text.replace(server_session.AGE, "-3600"))
    monkeypatch.setattr(server_session, "YOUNG", 1)
    waits: list[float] = []
    monkeypatch.setattr(server_session.time, "sleep", waits.append)
    look(LOG)
    assert not waits


@pytest.mark.database("postgresql")
def test_a_role_that_may_not_ask_for_the_timeline_compares_the_servers_start() -> None:
    LOG.execute("CREATE ROLE least; REVOKE EXECUTE ON FUNCTION PG_WALFILE_NAME(pg_lsn) FROM PUBLIC")
    try:
        LOG.execute("SET ROLE least")
        server = ServerIdentity(LOG)
        server.confirm()
        assert server.identity.endswith(" primary")
    finally:
        LOG.execute("RESET ROLE")
        LOG.execute("GRANT EXECUTE ON FUNCTION PG_WALFILE_NAME(pg_lsn) TO PUBLIC; DROP ROLE least")


@pytest.mark.database("sqlite")
def test_without_a_server_nothing_is_compared(known: ServerIdentity) -> None:
    assert known.proof() == ("", ())
    assert select(LOG, "SELECT 7", (), known, 1, 0) == [(7,)]
    known.confirm()
