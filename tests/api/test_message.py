"""The endpoint of one message's status: the same as get_status, for those who may see messages."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from openapi_schema_validator import OAS31Validator

from sqlqueue import Reject, get_status, publish
from tests.api.asking import TOKEN, bearing, logged_in, strangers
from tests.consuming import Consuming

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/queue/message/"


@pytest.fixture
def handled(options: Any, consuming: Consuming) -> None:
    """A message that one group has handled and another has rejected, and one that is scheduled."""

    def reject(delivery: Any) -> None:
        raise Reject("secret-error")

    consuming.consumer("t", lambda delivery: {"url": "secret-result"}, keep_results=timedelta(days=1))
    consuming.consumer("t", reject, group="bad")
    publish("t", 1, id="a b", key="ä&")
    consuming.drain()
    publish("t", 1, id="later", delay=3600)


def asked(client: Client, **query: str) -> Any:
    return client.get(PATH, query)


def conforms(answer: Any) -> None:
    document = Client().get("/queue/openapi.json").json()
    place = f"#/paths/~1message~1/get/responses/{answer.status_code}/content/application~1json/schema"
    OAS31Validator({**document, "$ref": place}, format_checker=OAS31Validator.FORMAT_CHECKER).validate(answer.json())


def test_it_tells_what_get_status_tells(handled: None) -> None:
    answer = asked(bearing(TOKEN), topic="t", id="a b", key="ä&")
    status = get_status("t", id="a b", key="ä&")
    assert answer.status_code == 200
    told = answer.json()
    assert (told["offset"], told["finished"], told["id"]) == (status.offset, True, "a b")
    assert told["groups"]["default"]["result"] == {"url": "secret-result"}
    assert (told["groups"]["bad"]["state"], told["groups"]["bad"]["error"]) == ("dead", "secret-error")
    conforms(answer)


def test_a_scheduled_one(handled: None) -> None:
    answer = asked(bearing(TOKEN), topic="t", id="later")
    assert (answer.json()["offset"], answer.json()["finished"]) == (None, False)
    assert answer.json()["groups"]["default"]["state"] == "scheduled"
    conforms(answer)


@pytest.mark.parametrize(
    ("query", "status", "why"),
    [
        ({}, 400, "topic=…&id=…"),
        ({"topic": "t"}, 400, "id=…"),
        ({"topic": "t", "id": "x" * 256}, 400, "255 is the most"),
        ({"topic": "\0", "id": "x"}, 400, "NUL"),
        ({"topic": "t", "id": "a b"}, 404, "unknown"),
        ({"topic": "other", "id": "a b", "key": "ä&"}, 404, "unknown"),
    ],
    ids=str,
)
def test_a_question_without_an_answer_says_why(handled: None, query: dict[str, str], status: int, why: str) -> None:
    answer = asked(bearing(TOKEN), **query)
    assert answer.status_code == status
    assert why in answer.json()["error"]
    conforms(answer)


def test_strangers_learn_nothing(handled: None) -> None:
    who = {**strangers(), "one who sees topics only": logged_in("topics", "view_topic")}
    for name, client in who.items():
        for query in ({"id": "a b", "key": "ä&"}, {"id": "nothing"}):
            answer = asked(client, topic="t", **query)
            known = name.startswith(("staff", "one"))
            assert answer.status_code == (403 if known else 401), name
            assert "secret" not in answer.content.decode(), name


def test_who_sees_topics_and_messages_sees_it(handled: None) -> None:
    client = logged_in("viewer", "view_topic", "view_message", staff=False)
    assert asked(client, topic="t", id="a b", key="ä&").json()["finished"] is True


def test_it_only_reads(handled: None) -> None:
    for method in ("post", "put", "patch", "delete"):
        assert getattr(bearing(TOKEN), method)(PATH).status_code == 405
    assert "no-store" in asked(bearing(TOKEN), topic="t", id="a b").headers["Cache-Control"]
