"""What the doctor and the checks say of replication, by the variables of MySQL and MariaDB."""

import pytest

from sqlqueue.database.server_checks import of_mysql

pytestmark = pytest.mark.once
MYSQL = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "replica_preserve_commit_order": "ON",
    "replica_parallel_workers": "4",
}


def numbers(variables: dict[str, str], domains: tuple[int, ...] = ()) -> list[str]:
    return [problem.id for problem in of_mysql(variables, domains)]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"replica_preserve_commit_order": "OFF", "replica_parallel_workers": "1"},
        {"log_bin": "OFF", "binlog_format": "STATEMENT"},
        {"binlog_format": "MIXED"},
    ],
    ids=str,
)
def test_what_is_well(changed: dict[str, str]) -> None:
    assert numbers({**MYSQL, **changed}, (0, 0)) == []


def test_replicas_that_commit_out_of_order() -> None:
    assert numbers({**MYSQL, "replica_preserve_commit_order": "OFF"}) == ["sqlqueue.W017"]
    assert numbers({"slave_preserve_commit_order": "OFF", "slave_parallel_workers": "8"}) == ["sqlqueue.W017"]
    assert numbers({}, (1, 0)) == ["sqlqueue.W017"]


def test_statements_that_change_nothing_on_a_replica() -> None:
    assert numbers({**MYSQL, "binlog_format": "STATEMENT"}) == ["sqlqueue.E018"]
