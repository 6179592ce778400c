"""A database whose character set knows some characters only: the queue's texts take all of them all the same."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection

from sqlqueue.database.tables import labels
from sqlqueue.models import Message, dead_letter_topic
from tests.consumer_processes import GROUP, Consumers, effects
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql")]

SAID = "Kühlung für Zürich-Šiška ist 😱 — 冷却"
COLUMNS = """
    SELECT table_name, column_name, character_set_name, collation_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name LIKE 'sqlqueue%%' AND character_set_name IS NOT NULL
"""


def migrate() -> None:
    for label in labels():
        call_command("migrate", label, verbosity=0)


def columns() -> dict[tuple[str, str], tuple[str, str]]:
    """Return the character set and the collation of every text of the queue."""
    with connection.cursor() as cursor:
        cursor.execute(COLUMNS)
        return {(table, column): (characters, collation) for table, column, characters, collation in cursor.fetchall()}


def alter_database(characters: str, collation: str) -> None:
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        cursor.execute(f"ALTER DATABASE {name} CHARACTER SET {characters} COLLATE {collation}")


LATIN1, UTF8MB3 = ("latin1", "latin1_swedish_ci"), ("utf8mb3", "utf8mb3_general_ci")


@pytest.fixture(params=[LATIN1, UTF8MB3], ids=["latin1", "utf8mb3"])
def narrow(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[str]:
    """Tables in a database of that character set."""
    characters, collation = request.param
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@character_set_database, @@collation_database")
        before = cursor.fetchone()
    call_command("migrate", "sqlqueue", "zero", verbosity=0)  # and what depends on it
    alter_database(characters, collation)
    migrate()
    yield characters
    alter_database(*before)
    call_command("migrate", "sqlqueue", "zero", verbosity=0)  # and what depends on it
    migrate()


def test_every_text_takes_every_character(narrow: str) -> None:
    assert {characters for characters, _ in columns().values()} == {"utf8mb4"}


@pytest.mark.parametrize("narrow", [LATIN1], ids=["latin1"], indirect=True)
@pytest.mark.parametrize("then", ["reject", "fail"])
def test_an_error_of_any_characters_ends_no_consumer_process(narrow: str, then: str, consumers: Consumers) -> None:
    command = consumers.start("steady")
    names = {f"neighbour-{number}" for number in range(20)}
    for name in sorted(names):
        consumers.publish("steady", name, sleep=0.02)
    consumers.publish("steady", "hurt", then=then, say=SAID)
    wait_until_settled("steady", GROUP)
    command.terminate()
    assert command.wait() == 0, command.output
    assert consumers.noted("begin") == consumers.noted("end")
    assert {attempt for name, attempt in effects() if name in names} == {1}
    letters = Message.objects.filter(topic=dead_letter_topic("steady"))
    assert [letter.last_error for letter in letters] == ([SAID] if then == "reject" else [])


def compared() -> list[Any]:
    return [(Message, "fingerprint"), (Message, "failed_group"), (Message, "original_topic")]


@pytest.mark.parametrize(("model", "column"), compared())
def test_what_is_compared_is_compared_exactly(model: Any, column: str) -> None:
    _, collation = columns()[model._meta.db_table, column]
    assert collation == ("utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin")
