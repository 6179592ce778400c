"""What is read of the admin's pages, the addresses of operations, and what is sent to them."""

import re
from collections.abc import Iterator
from typing import Any

from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse


def operation(model: str, name: str, key: object = None) -> str:
    """Return the address of an operation on a model's rows: on ticked ones, or on that of a page."""
    args = [name] if key is None else [quote(key), name]
    return reverse(f"admin:sqlqueue_{model}_operation", args=args)


def operate(client: Client, address: str, **values: Any) -> Any:
    """Confirm an operation; return the answer, where it leads to."""
    return client.post(address, {"confirmed": "1", **values}, follow=True)


def offsets(html: str) -> list[int]:
    """Return the messages that a page has boxes for, or sends with an operation."""
    return [int(offset) for offset in re.findall(r'name="_selected_action" value="(\d+)"', html)]


def through(client: Client, address: str) -> Iterator[str]:
    """Yield every page of a list."""
    onward: str | None = address
    while onward is not None:
        answer = client.get(onward)
        assert answer.status_code == 200
        html = answer.content.decode()
        yield html
        found = re.search(r'href="([^"]*)" rel="next"', html)
        onward = found and address.partition("?")[0] + found[1].replace("&amp;", "&")
