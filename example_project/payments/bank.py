"""The bank: a stand-in for an outside service, which a real project would call over HTTP and with a timeout."""

from __future__ import annotations


def transfer(reference: str, amount: int) -> str:
    """Transfer an amount in dollars, once for each reference, and return the bank's receipt."""
    return f"{amount} USD for {reference}"
