"""The OpenAPI description is one, and every answer is what it says."""

import json
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate

from sqlqueue.api.views import DESCRIPTION
from sqlqueue.urls import urlpatterns
from tests.api.asking import TOKEN, TOPIC, bearing, logged_in
from tests.api.described import description

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]


@pytest.fixture
def document(options) -> dict[str, Any]:
    return Client().get("/queue/openapi.json").json()


def conforms(document: dict[str, Any], path: str, client: Client) -> int:
    """Assert that the answer at a path is one that the document has, and return its status."""
    answer = client.get(f"/queue{path}")
    status = str(answer.status_code)
    responses = document["paths"][path]["get"]["responses"]
    assert status in responses, f"{path} answers {status}"
    place = f"#/paths/{path.replace('/', '~1')}/get/responses/{status}/content/application~1json/schema"
    OAS31Validator({**document, "$ref": place}, format_checker=OAS31Validator.FORMAT_CHECKER).validate(answer.json())
    assert answer.headers["Content-Type"] == "application/json"
    return answer.status_code


def test_it_is_a_description(document) -> None:
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_the_file_is_that_of_the_types() -> None:
    assert json.loads(DESCRIPTION.read_text()) == description(), "tests.api.described writes it anew"


def test_it_has_every_endpoint_and_no_other(document) -> None:
    assert {f"/{pattern.pattern}" for pattern in urlpatterns} - {"/openapi.json"} == set(document["paths"])


def test_it_knows_where_it_is_mounted(document) -> None:
    assert document["servers"] == [{"url": "/queue"}]


def test_every_answer_is_as_described(document, backlog, options) -> None:
    clients = {"stranger": Client(), "insider": bearing(TOKEN), "staff": logged_in("staff")}
    seen = {(who, path): conforms(document, path, c) for who, c in clients.items() for path in document["paths"]}
    assert {status for (_, path), status in seen.items() if path == "/status/"} == {200, 401, 403}
    options(HEALTH={"max_lag": 0, "topics": {TOPIC: {"no_subscriber": True}}})
    for client in clients.values():
        assert conforms(document, "/health/", client) == 503
    recorder = MigrationRecorder(connection)
    name = max(name for app, name in recorder.applied_migrations() if app == "sqlqueue")
    recorder.record_unapplied("sqlqueue", name)
    try:
        for client in clients.values():
            assert conforms(document, "/health/ready", client) == 503
    finally:
        recorder.record_applied("sqlqueue", name)


def test_an_answer_that_is_not_as_described_is_found(document, backlog) -> None:
    document["components"]["schemas"]["Health"]["properties"]["groups"]["items"]["properties"].pop("lag")
    with pytest.raises(Exception, match=r"not valid under any of the given schemas|'lag' was unexpected"):
        conforms(document, "/health/", bearing(TOKEN))


def test_what_it_allows_of_a_question_is_answered_and_the_rest_is_refused(document, options) -> None:
    parameters = {one["name"]: one["schema"] for one in document["paths"]["/message/"]["parameters"]}

    def status(**values: str) -> int:
        return bearing(TOKEN).get("/queue/message/", {"topic": TOPIC, "id": "i", "key": "k", **values}).status_code

    for name, schema in parameters.items():
        assert status(**{name: "x" * schema["maxLength"]}) != 400 or name == "topic"
        assert status(**{name: "x" * (schema["maxLength"] + 1)}) == 400
        assert (status(**{name: ""}) == 400) == (schema["minLength"] == 1)
