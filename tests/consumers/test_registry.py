"""@consumer: what it takes, what it refuses, and whom a process is to run."""

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from sqlqueue import ConfigurationError, consumer, subscribe
from sqlqueue.consumers.declare.registry import registry
from tests.consuming import Consuming


@pytest.fixture(autouse=True)
def consuming():
    """Without a database: nothing is consumed here."""
    consuming = Consuming()
    yield consuming
    consuming.end()


def handle(delivery) -> None: ...


def registered():
    (found,) = registry.consumers.values()
    return found


def generator(delivery: Any) -> Iterator[None]:
    yield


async def async_generator(delivery: Any) -> AsyncIterator[None]:
    yield


def test_without_options_it_is_as_documented() -> None:
    assert consumer("t")(handle) is handle
    found = registered()
    assert (found.group, found.start, found.is_async) == ("default", "earliest", False)
    options, backoff = found.options, found.backoff
    assert (options.ordering, options.max_attempts, options.visibility_timeout) == ("key", 5, 60)
    assert (options.batch, options.batch_size, options.atomic) == (False, 100, False)
    assert (backoff.first, backoff.longest, backoff.jitter) == (1, 3600, 0.33)


def test_every_option_arrives() -> None:
    consumer(
        "t",
        group="g",
        ordering="none",
        max_attempts=7,
        visibility_timeout=timedelta(minutes=2),
        backoff=timedelta(seconds=3),
        max_backoff=40,
        jitter=0,
        batch=True,
        atomic=True,
        batch_size=9,
        start="latest",
    )(handle)
    found = registered()
    assert (found.group, found.start) == ("g", "latest")
    options, backoff = found.options, found.backoff
    assert (options.ordering, options.max_attempts, options.visibility_timeout) == ("none", 7, 120)
    assert (options.batch, options.batch_size, options.atomic) == (True, 9, True)
    assert (backoff.first, backoff.longest, backoff.jitter) == (3, 40, 0)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"orderin": "key"}, "no option 'orderin'. Did you mean 'ordering'?"),
        ({"ordering": "keys"}, "ordering must be one of key, partition, none, not 'keys'"),
        ({"start": "now"}, "start must be 'earliest' or 'latest'"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"max_attempts": 2.0}, "max_attempts must be a whole number"),
        ({"max_attempts": True}, "max_attempts must be a whole number"),
        ({"batch_size": 10**6}, "batch_size must be a whole number from 1 to 10000"),
        ({"commit_every": 10**6, "atomic": True}, "commit_every must be a whole number from 1 to 10000"),
        ({"commit_every": 10}, "commit_every lets atomic handlers share transactions: write atomic=True beside it"),
        ({"commit_every": 10, "atomic": True, "batch": True}, "leave commit_every or batch out"),
        ({"commit_every": 10, "atomic": True, "rate_limit_per_key": "1/s"}, "leave it or commit_every out"),
        (
            {"commit_every": 10, "atomic": True, "ordering": "none", "concurrency_limit_per_key": 1},
            "run one after another: leave it or commit_every out",
        ),
        ({"visibility_timeout": 0}, "visibility_timeout must be seconds .* from 0.001 to 2592000"),
        ({"visibility_timeout": "60"}, "visibility_timeout must be seconds"),
        ({"backoff": -1}, "backoff must be seconds"),
        ({"max_backoff": float("nan")}, "max_backoff must be seconds"),
        ({"backoff": 60, "max_backoff": 59}, r"backoff \(60 s\) is longer than max_backoff \(59 s\)"),
        (
            {"backoff": timedelta(hours=2)},
            r"backoff \(7200 s\) is longer than max_backoff \(3600 s\): raise max_backoff",
        ),
        ({"max_backoff": 0.5}, r"backoff \(1 s\) is longer than max_backoff \(0.5 s\)"),
        ({"jitter": 1.5}, "jitter is a fraction"),
        ({"batch": 1}, "batch must be True or False"),
        ({"atomic": "yes"}, "atomic must be True or False"),
        ({"group": "no name"}, "group 'no name' is not a name"),
        ({"group": "g" * 101}, "101 characters; 100 is the most"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        consumer("t", **options)
    assert not registry.consumers


def test_a_topic_whose_dead_letters_could_have_no_name_is_refused() -> None:
    """A name with the suffix may be longer than others, one with two of them may not."""
    consumer("t" * 96 + "_dlq")(handle)
    for refused in ("t" * 97 + "_dlq", "t" * 100 + "_dlq"):
        with pytest.raises(ConfigurationError, match="100 is the most of a topic that is consumed"):
            consumer(refused)
        with pytest.raises(ConfigurationError, match="100 is the most of a topic that is consumed"):
            subscribe(refused).__enter__()


def test_everything_that_is_wrong_is_named_together() -> None:
    with pytest.raises(ConfigurationError, match=r"ordering .*; max_attempts .*; batch "):
        consumer("t", ordering="x", max_attempts=-1, batch=None)


@pytest.mark.parametrize(
    ("handler", "batch", "said"),
    [
        (lambda: None, False, r"\(\) cannot handle deliveries; write def .*\(delivery\): .* one delivery"),
        (lambda payload, headers: None, False, r"\(payload, headers\) cannot"),
        (lambda payload, headers: None, True, r"\(deliveries\): .* a list of deliveries"),
        (lambda *, delivery: None, False, r"\(\*, delivery\) cannot"),
        (generator, False, "generator is a generator, so calling it does nothing"),
        (async_generator, False, "async_generator is a generator"),
    ],
)
def test_a_function_that_cannot_be_called_with_a_delivery_is_refused(
    consuming: Consuming, handler: Callable[..., Any], batch: bool, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        consuming.consumer("t", handler, batch=batch)
    assert not registry.consumers


@pytest.mark.parametrize("handler", [lambda delivery, more=1: None, lambda *anything: None, print])
def test_what_can_be_called_with_a_delivery_is_taken(consuming: Consuming, handler: Callable[..., Any]) -> None:
    consuming.consumer("t", handler)
    assert registry.consumers


def test_the_topic_may_not_be_left_out() -> None:
    with pytest.raises(ConfigurationError, match=r'@consumer\("flights"\)'):
        consumer(handle)  # type: ignore[arg-type]


class TestSelecting:
    @pytest.fixture(autouse=True)
    def three(self) -> None:
        for group, topic in (("one", "t"), ("two", "t"), ("two", "u")):
            consumer(topic, group=group)(handle)

    @pytest.mark.parametrize(
        ("groups", "topics", "expected"),
        [
            ((), (), [("one", "t"), ("two", "t"), ("two", "u")]),
            (("two",), (), [("two", "t"), ("two", "u")]),
            ((), ("t",), [("one", "t"), ("two", "t")]),
            (("one", "two"), ("u",), [("two", "u")]),
            (("one",), ("u",), []),
        ],
    )
    def test_by_group_and_topic(self, groups, topics, expected) -> None:
        assert [(found.group, found.topic) for found in registry.select(groups, topics)] == expected

    def test_a_name_that_is_not_registered_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match="Did you mean 'one'"):
            registry.select(["on"])
        with pytest.raises(ConfigurationError, match="Known are: t, u"):
            registry.select([], ["zzz"])
