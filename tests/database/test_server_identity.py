"""A server that may have forgotten what it has shown is told from one to which only a connection was lost."""

import pytest
from django.db import connection

from sqlqueue.database.server_identity import ServerChanged, ServerIdentity, look
from tests.processes import wait_until
from tests.servers.private import PrivateServer
from tests.servers.session import crash_a_process

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "postgresql")]


@pytest.fixture
def known(database_server: PrivateServer) -> ServerIdentity:
    """A server that has been looked at, a while after its start: MariaDB tells whole seconds, and is doubted before."""
    wait_until(lambda: look("default").uptime > 5)
    incarnation = ServerIdentity("default")
    incarnation.make_sure()
    return incarnation


def lose_the_connection(incarnation: ServerIdentity) -> None:
    connection.close()
    incarnation.doubtful = True


def test_a_lost_connection_alone_changes_nothing(known: ServerIdentity) -> None:
    lose_the_connection(known)
    known.make_sure()
    assert not known.doubtful


@pytest.mark.parametrize("way", ["restart", "crash"])
def test_a_restart_is_a_change(database_server: PrivateServer, known: ServerIdentity, way: str) -> None:
    if way == "restart":
        database_server.restart()
    else:
        database_server.kill()
        database_server.start()
    lose_the_connection(known)
    with pytest.raises(ServerChanged):
        known.make_sure()
    known.make_sure()


@pytest.mark.database("postgresql")
def test_the_crash_of_one_of_its_processes_is_a_change_although_the_server_lives_on(
    database_server: PrivateServer, known: ServerIdentity
) -> None:
    pid = database_server.pid
    crash_a_process()
    lose_the_connection(known)
    with pytest.raises(ServerChanged):
        known.make_sure()
    assert database_server.pid == pid
    known.make_sure()
