"""A consumers module with several mistakes."""

from sqlqueue import consumer


def one(delivery) -> None: ...


def two(delivery) -> None: ...


consumer("flights", group="aircraft")(one)
consumer("flights", group="aircraft")(two)
