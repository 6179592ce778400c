"""A process that offers unique messages. It reads its orders line by line, and answers each with a line of JSON.

`level READ_COMMITTED -`: use that isolation level. `round KEY N`: offer the key once, in one of several ways; the
answer is the status. `free SEED N`: offer the keys a, b and c, also inside transactions that roll back, until it has
created N messages; the answer is how many those are.
"""

import json
import random
import sys

import django
from django.db import OperationalError, connection, transaction

django.setup()

from sqlqueue import NewMessage, publish, publish_many  # noqa: E402

TOPIC = "unique"


def unique(key: str, **options: object) -> NewMessage:
    return NewMessage(key, key=key, unique_for="key", **options)


def offer(key: str, way: int) -> str:
    """Offer a key once."""
    if way % 3 == 0:
        return publish(TOPIC, key, key=key, unique_for="key").status
    if way % 3 == 1:
        result = publish_many(TOPIC, [unique(key), unique(key)])
        assert result.statuses is not None
        assert result.statuses[1] == "ignored"
        return result.statuses[0]
    while True:
        try:
            with transaction.atomic():
                return publish(TOPIC, key, key=key, unique_for="key").status
        except OperationalError:  # the snapshot of PostgreSQL's REPEATABLE READ is too old: the caller runs it again
            continue


def at_random(chance: random.Random) -> int:
    """Offer some keys in some way; return how many messages that has created."""
    keys = chance.sample("abc", chance.randint(1, 3))
    created = 0
    try:
        with transaction.atomic():
            if chance.random() < 0.5:
                created = publish_many(TOPIC, [unique(key) for key in keys]).created
            else:
                created = sum(publish(TOPIC, key, key=key, unique_for="key").created for key in sorted(keys))
            if chance.random() < 0.3:
                transaction.set_rollback(True)
                created = 0
    except OperationalError:  # a deadlock, or a snapshot that is too old: rolled back
        return 0
    return created


def use(level: str) -> str:
    """Use an isolation level."""
    words = {"postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION", "mysql": "SET SESSION TRANSACTION"}
    if connection.vendor in words:
        with connection.cursor() as cursor:
            cursor.execute(f"{words[connection.vendor]} ISOLATION LEVEL {level.replace('_', ' ')}")
    return level


def main() -> None:
    """Carry out orders until there are no more."""
    for line in sys.stdin:
        order, what, number = line.split()
        if order == "level":
            answer: str | int = use(what)
        elif order == "round":
            answer = offer(what, int(number))
        else:
            chance = random.Random(what)
            answer = 0
            while answer < int(number):
                answer += at_random(chance)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
