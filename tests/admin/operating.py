"""The addresses of operations in the admin, and what is sent to them."""

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
