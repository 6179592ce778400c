"""A database whose character set knows some characters only: the queue's texts take all of them all the same."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from sqlqueue.models import Message, Replay, dead_letter_topic
from tests.consumer_processes import GROUP, Consumers, effects
from tests.progress import wait_until_settled

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.database("mariadb", "mysql")]

BEFORE = "0006_blocked_range"
AFTER = "0007_every_character"
SAID = "Kühlung für Zürich-Šiška ist 😱 — 冷却"
COLUMNS = """
    SELECT table_name, column_name, character_set_name, collation_name FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name LIKE 'sqlqueue%%' AND character_set_name IS NOT NULL
"""


def migrate(name: str = "") -> list[str]:
    """Migrate the queue's tables; return what was altered."""
    with CaptureQueriesContext(connection) as statements:
        call_command("migrate", "sqlqueue", *([name] if name else []), verbosity=0)
    return [query["sql"] for query in statements.captured_queries if query["sql"].startswith("ALTER")]


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
    """Tables as version 0.1 has made them in a database of that character set."""
    characters, collation = request.param
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@character_set_database, @@collation_database")
        before = cursor.fetchone()
    migrate("zero")
    alter_database(characters, collation)
    migrate(BEFORE)
    yield characters
    alter_database(*before)
    migrate("zero")
    migrate()


def test_every_text_takes_every_character(narrow: str) -> None:
    assert narrow in {characters for characters, _ in columns().values()}
    migrate()
    assert {characters for characters, _ in columns().values()} == {"utf8mb4"}


@pytest.mark.parametrize("narrow", [LATIN1], ids=["latin1"], indirect=True)
def test_what_was_there_stays(narrow: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sqlqueue_message (topic, `partition`, message_id, payload, last_error, fingerprint)"
            " VALUES ('t', 0, 'ü😱', '{}', 'Zürich', 'für')"
        )
    migrate()
    message = Message.objects.get()
    assert (message.message_id, message.last_error, message.fingerprint) == ("ü😱", "Zürich", "für")


@pytest.mark.parametrize("narrow", [LATIN1], ids=["latin1"], indirect=True)
def test_a_migration_that_was_cut_off_goes_on(narrow: str) -> None:
    migrate(AFTER)
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_migrations WHERE app = 'sqlqueue' AND name > %s", [BEFORE])
        cursor.execute(f"ALTER TABLE sqlqueue_replay MODIFY note varchar(300) CHARACTER SET {narrow} NOT NULL")
    altered = migrate(AFTER)
    assert [statement.split()[2] for statement in altered] == ["`sqlqueue_replay`"]
    assert {characters for characters, _ in columns().values()} == {"utf8mb4"}


@pytest.mark.parametrize("narrow", [LATIN1], ids=["latin1"], indirect=True)
@pytest.mark.parametrize("then", ["reject", "fail"])
def test_an_error_of_any_characters_ends_no_consumer_process(narrow: str, then: str, consumers: Consumers) -> None:
    migrate()
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


class TestAWideDatabase:
    """Of utf8mb4, as most are."""

    @pytest.fixture
    def before(self, transactional_db: None) -> Iterator[None]:
        migrate(BEFORE)
        self.fold("utf8mb4_general_ci")
        yield
        migrate()

    def fold(self, collation: str) -> None:
        """Let the texts that the migration makes exact compare as version 0.1 left them."""
        with connection.cursor() as cursor:
            cursor.execute(
                "ALTER TABLE sqlqueue_message MODIFY last_error longtext COLLATE utf8mb4_general_ci NULL,"
                f" MODIFY fingerprint varchar(200) COLLATE {collation} NOT NULL DEFAULT ''"
            )

    def test_the_log_is_not_rewritten(self, before: None) -> None:
        """The statement changes the collation of one column that has no index: no server copies a row for that."""
        [of_the_log] = [statement for statement in migrate(AFTER) if "`sqlqueue_message`" in statement]
        assert "last_error" not in of_the_log
        self.fold("utf8mb4_general_ci")
        with connection.cursor() as cursor:
            cursor.execute(f"{of_the_log}, ALGORITHM=INPLACE, LOCK=NONE")
        assert ("sqlqueue_message", "last_error") in columns()

    def test_nothing_is_altered_twice(self, before: None) -> None:
        migrate(AFTER)
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM django_migrations WHERE app = 'sqlqueue' AND name > %s", [BEFORE])
        assert migrate(AFTER) == []


def compared() -> list[Any]:
    return [(Message, "fingerprint"), (Message, "failed_group"), (Message, "original_topic"), (Replay, "fingerprint")]


@pytest.mark.parametrize(("model", "column"), compared())
def test_what_is_compared_is_compared_exactly(model: Any, column: str) -> None:
    _, collation = columns()[model._meta.db_table, column]
    assert collation == ("utf8mb4_nopad_bin" if connection.mysql_is_mariadb else "utf8mb4_0900_bin")
