"""What publishers and handlers have written, on pages: no more of it is built than is shown, and nothing of it is
obeyed or hidden by a browser."""

import json
import re
import tracemalloc
from typing import Any

import pytest
from django.db import connection
from django.test import Client

from sqlqueue import Delivery, Reject, publish
from sqlqueue.admin import cells
from sqlqueue.core import codec
from sqlqueue.models import Message
from tests.admin.test_overview import page
from tests.consuming import Consuming

pytestmark = [pytest.mark.django_db(transaction=True)]
TRICKY = "pay \u202eexe.txt\u202c \u200f\x1b[31m\x07\x9b"  # turns the direction, and would colour a terminal
DEPTHS = {"sqlite": 490, "postgresql": 490, "mysql": 30}
LARGEST = 12_000_000  # bytes that a page may need at its peak


def nested(size: int) -> Any:
    value: Any = [1] * (size // 2)
    for _ in range(DEPTHS[connection.vendor]):
        value = [value]
    return value


def test_a_page_costs_what_it_shows_however_deeply_a_payload_is_nested(admin_client: Client) -> None:
    offset = publish("t", nested(400_000)).offset
    page(admin_client, f"/admin/sqlqueue/message/{offset}/change/")  # imports what pages need
    tracemalloc.start()
    try:
        html = page(admin_client, f"/admin/sqlqueue/message/{offset}/change/")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n…</pre>" in html
    assert peak < LARGEST


@pytest.mark.once
def test_a_form_has_all_of_a_value_and_indents_it_up_to_a_bound(monkeypatch: Any) -> None:
    value = {"a": [1, 2, 3]}
    assert cells.editable(value) == json.dumps(value, indent=2)
    monkeypatch.setattr(codec, "MOST_INDENTED", 10)
    assert json.loads(cells.editable(value)) == value
    assert "\n" not in cells.editable(value)


@pytest.mark.once
def test_characters_that_a_browser_obeys_or_hides_are_escaped_in_what_a_publisher_and_a_handler_have_written(
    admin_client: Client, consuming: Consuming
) -> None:
    def fail(delivery: Delivery) -> None:
        raise Reject(TRICKY)

    consuming.consumer("t", fail, group="g")
    published = publish("t", {"text": TRICKY}, key=TRICKY, id=TRICKY, headers={"h": TRICKY})
    consuming.drain()
    letter = Message.objects.dead_letters("g", "t").get()
    addresses = [
        "message/",
        f"message/{published.offset}/change/",
        f"message/{letter.offset}/change/",
        "deadletter/",
        "deadletter/list/?topic=t",
        "receipt/",
        "collectedmessage/",
        "deliverystate/",
    ]
    for address in addresses:
        html = page(admin_client, f"/admin/sqlqueue/{address}")
        html = re.sub(r'<input type="hidden"[^>]*>', "", html)  # sent back as it is
        shown = html.replace("\n", "").replace("\t", "").replace("\xa0", "")
        odd = {one for one in shown if one in TRICKY and not one.isprintable()}
        assert not odd, (address, [shown[max(0, shown.index(one) - 150) : shown.index(one) + 40] for one in odd])
    assert "\\u202eexe.txt" in page(admin_client, f"/admin/sqlqueue/message/{published.offset}/change/")
