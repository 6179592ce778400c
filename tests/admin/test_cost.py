"""No page costs more than thirty queries, or reads a whole table, however much there is."""

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin.crowd import Crowd
from tests.admin.pages import visits
from tests.database.plans import Recorder, an_index_if_there_is_one, full_scans

pytestmark = [
    pytest.mark.django_db(transaction=True),  # ANALYZE commits
    pytest.mark.database("mariadb", "mysql", "postgresql"),  # the statements are the same on SQLite
]
MOST_QUERIES = 30
MANY = 20  # conditions of one statement, each on the index
SMALL = ("sqlqueue_topic", "sqlqueue_consumer_group", "sqlqueue_request")


def test_every_page_is_cheap(admin_client: Client, database_name: str) -> None:
    Crowd(messages=16_000, letters=4_000)
    recorder = Recorder()
    expensive = []
    for name, (address, values) in visits().items():
        with CaptureQueriesContext(connection) as queries, connection.execute_wrapper(recorder):
            answer = admin_client.get(address) if values is None else admin_client.post(address, values)
        assert answer.status_code == 200, name
        assert "errorlist" not in answer.content.decode(), name
        assert len(queries) >= 3, name
        if len(queries) > MOST_QUERIES:
            expensive.append(f"{name}: {len(queries)} queries")
    assert not expensive
    scans = []
    with an_index_if_there_is_one():
        for sql, params in recorder.statements.values():
            if "sqlqueue_message" in sql or not any(small in sql for small in SMALL):
                if database_name == "mysql" and sql.count("consumer_group` IN") > MANY:
                    continue  # MySQL rightly had rather read a small table whole than look up half of it
                scans += [f"{' '.join(sql.split())[:300]} → {found}" for found in full_scans(sql, params)]
    assert len(recorder.statements) > 20
    assert not scans, "\n".join(scans)
