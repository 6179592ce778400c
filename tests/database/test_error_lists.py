"""The table of database errors is held against the servers' own lists: what they say of the environment is in it, under
its own name, and so is all that they say of a row's data."""

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from django.db import connection

from sqlqueue.database.error_codes import MYSQL, MYSQL_ERRORS, POSTGRESQL, ErrorKind
from tests.servers.private import find_program

ENVIRONMENT = re.compile(
    r"TIMEOUT|KILLED|SHUTDOWN|DISK|OUT_?OF_(RES|MEM|SORT)|_FULL|READ_?ONLY|DENIED|OFFLINE|LOCK|ABORT|MUST_CHANGE|ROLLBACK"
    r"|TOO_MANY_(CONN|USER|CONC)|DEADLOCK|DURING_COMMIT|COMMIT_FAILED|INDEX_CORRUPT|TABLE_CORRUPT|CONN_LIMIT|RESOURCES"
)
# Of these features sqlqueue uses none.
UNUSED = re.compile(
    r"FULLTEXT|SRS|SRID|GIS|GEOMETRY|LATITUDE|LONGITUDE|POLYGON|RADIUS|REPLICA|SLAVE|MASTER|SOURCE|BINLOG|_RBR|_RPL_"
    r"|XAER|_LH_|_JDV_|_CLONE_|OPTION|LOGARITHM|TABLESAMPLE|DYN_COL|DELAYED|PASSWORD_NO_MATCH|LOCKING_SERVICE|USER_LOCK_"
    r"|APPLIER|KEYRING|PERSIST|REDO_LOG_ARCHIVE|DEBUG_SYNC|HELP|AUDIT_LOG_COMPONENT|GRANT_AS|ALTER_LOCK|FILSORT|BLOCK_"
    r"|READ_WITH|_DB_WITH_READ_LOCK|TABLE_NOT_LOCKED|LOCK_OR_ACTIVE|LOG_TABLE|SYSTEM_TABLE|TABLE_LOCK|VARIABLE_IS|SYS_VAR"
    r"|NOT_COMPLETE_ROLLBACK|TRANSACTION_ROLLBACK$|SKIP_LOCKED|MANAGEMENT_CACHES|KILL_QUERY|ROLLBACK_ONLY|TO_SAVEPOINT"
    r"|UNDER_ROLLBACK|VERS_PART|INDEX_FILE_FULL|HANDOFF|DEFAULT_VALUE_FOR_FIELD|SP_PROC|OLD_UNUSED|NON_UNIQ_ERROR|BLOCKHOLE"
)
BY_STATE = {"22": ErrorKind.DATA, "23": ErrorKind.DATA, "40": ErrorKind.CONTENTION}
BY_STATE |= {"08": ErrorKind.GONE, "28": ErrorKind.GONE, "XA1": ErrorKind.CONTENTION}
EXCEPT = {1062: ErrorKind.DUPLICATE, 1153: ErrorKind.DATA}  # what the server's class of states does not tell
UNUSED_BY_THE_DRIVER = re.compile(
    r"PIPE|SHARED_MEMORY|EMBEDDED|PROBE|UNUSED|LICENSE|_PARAM|NULL_POINTER|NO_PREPARE|INVALID_BUFFER|STMT_METADATA"
    r"|NOT_IMPLEMENTED|CR_(LOCALHOST|TCP)_CONNECTION|CANT_READ_CHARSET|FILE_NAME"
)


def named() -> dict[int, str]:
    """Return the table's numbers and the names that it gives them."""
    names = {}
    for kind in ErrorKind:
        words = MYSQL_ERRORS.get(kind, "").split()
        names.update(zip(map(int, words[::2]), words[1::2]))
    return names


def hold(listed: Mapping[int, tuple[str, str]], of_the_other: set[int]) -> None:
    """Compare the table with a server's list of (name, state) by number. of_the_other: numbers that mean something else
    there, and that sqlqueue does not meet."""
    names = {number: name for number, name in named().items() if not name.startswith("CR_")}
    differs = {number for number, name in names.items() if number in listed and listed[number][0] != name}
    assert differs == of_the_other
    missing, wrong = [], []
    for number, (name, state) in listed.items():
        expected = EXCEPT.get(number) or BY_STATE.get(state[:2]) or BY_STATE.get(state[:3])
        if UNUSED.search(name):
            continue
        if number not in MYSQL and (expected or ENVIRONMENT.search(name)):
            missing.append(f"{number} {name} {state}")
        elif expected and MYSQL[number] is not expected:
            wrong.append(f"{number} {name} is {MYSQL[number]}, not {expected}")
    assert not missing
    assert not wrong


@pytest.mark.database("mysql")
@pytest.mark.django_db
def test_every_error_of_mysqls_own_list_is_known_for_what_it_is() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT error_number, error_name, sql_state FROM performance_schema.events_errors_summary_global_by_error"
            " WHERE error_number < 10000"  # those above are written to the server's log only
        )
        listed = {number: (name, state) for number, name, state in cursor.fetchall()}
    assert len(listed) > 1_000
    hold(listed, {4025, 4145, 4150, 4151})


@pytest.mark.database("mariadb")
@pytest.mark.django_db
def test_every_error_of_mariadbs_own_list_is_known_for_what_it_is() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@character_sets_dir")
        (folder,) = cursor.fetchone()
    number, listed = 0, {}
    for line in (Path(folder).parent / "errmsg-utf8.txt").read_text(errors="replace").splitlines():
        if start := re.match(r"(?:start-error|skip-to-error)-number (\d+)", line):
            number = int(start[1])
        elif entry := re.match(r"([A-Z][A-Z0-9_]+)(?:\s+(\w+))?", line):
            listed[number] = (entry[1], entry[2] or "HY000")
            number += 1
    assert len(listed) > 1_000
    hold(listed, {3024, 4031, 4081, 4082})


@pytest.mark.database("mariadb", "mysql")
def test_every_error_of_the_client_library_is_known() -> None:
    from MySQLdb.constants import CR

    limits = {"ERROR_FIRST", "ERROR_LAST", "MIN_ERROR", "MAX_ERROR"}
    listed = {number: f"CR_{name}" for name, number in vars(CR).items() if name.isupper() and name not in limits}
    assert {number: name for number, name in named().items() if name.startswith("CR_")}.items() <= listed.items()
    assert not {
        name for number, name in listed.items() if number not in MYSQL and not UNUSED_BY_THE_DRIVER.search(name)
    }
    assert MYSQL[CR.MALFORMED_PACKET] is ErrorKind.GONE


@pytest.mark.database("postgresql")
def test_every_class_of_postgresqls_own_list_is_known_or_may_pass() -> None:
    """Of a class that is in no table nothing is known to be a row's own: a statement that the server does not
    understand, a program's fault, another server's."""
    program = find_program("pg_config", "/usr/lib/postgresql/15/bin")
    shared = "/usr/share/postgresql/15"
    if program:
        shared = subprocess.run([program, "--sharedir"], capture_output=True, text=True, check=True).stdout.strip()
    text = (Path(shared) / "errcodes.txt").read_text()
    states = {found[1]: found[2] for found in re.finditer(r"^(\w{5})\s+E\s+\w+\s+(\w+)", text, re.MULTILINE)}
    assert len(states) > 200
    unknown = {state for state in states if state not in POSTGRESQL and state[:2] not in POSTGRESQL}
    classes = " ".join(sorted({state[:2] for state in unknown}))
    assert classes == "03 09 0A 0B 0F 0L 0P 0Z 20 24 26 27 2B 2F 34 38 39 3F 42 55 F0 HV P0 XX"
    known = {state for state in POSTGRESQL if len(state) == 5}
    assert known - set(states) <= {"25P04"}  # of PostgreSQL 17
