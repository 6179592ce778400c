"""A publisher for topics of several databases: each key is published in one way, as the guide says.

Those of `direct` and `many` are published where they belong: outside of transactions, or in one on their database's
alias. Those of `relaying` are relayed by the transactions of one database, which is
part of the key. A "relays" line says which one.
"""

from __future__ import annotations

import random
import time

from django.db import Error, transaction

from tests.soak.places import ALIASES
from tests.soak.publisher import MEAN_BULK, Item, Publisher, RolledBack, run

TOPICS = {"orders": 8, "ledger": 5, "strict": 3}  # how often each is chosen, beside the others
IN_ORDER = "strict"  # by partition: what enters the log later than it was committed has no place there
MOST_AT_ONCE = 24  # messages


class DatabasePublisher(Publisher):
    """The ways of publishing."""

    def direct(self) -> None:
        """One message: in autocommit, in a transaction on its database, after the commit of one on any, or due
        later."""
        (item,) = self.items(self._topic(), 1)
        way = self.dice.choices([self._once, self._in_transaction, self._on_commit, self._later], [5, 5, 2, 2])[0]
        if way == self._later and item.topic == IN_ORDER:
            way = self._once
        if way == self._later:
            item = Item(item.topic, f"{item.key}-later", item.id, item.do)
        self.carry_out([item], lambda items: way(items[0]), doubts=True)
        time.sleep(self.dice.expovariate(self.rate))

    def many(self) -> None:
        """Many with one call, of several databases, of which some may fail. All or none of each key's are published, so
        a key's are a transaction."""
        from sqlqueue import NewMessage, PartlyPublished, publish_many

        items = self.items(self._topic(), self.dice.randint(2, MOST_AT_ONCE))
        transactions = {key: next(self._transactions) for key in dict.fromkeys(item.key for item in items)}
        for key, number in transactions.items():
            mine = [[item.topic, item.key, item.id] for item in items if item.key == key]
            self.journal.note("publish", number, mine)
        left = items
        while left and not self.stopping:
            messages = [NewMessage(item.payload, key=item.key, id=item.id) for item in left]
            try:
                publish_many(items[0].topic, messages)
                left = []
            except (PartlyPublished, Error) as error:
                if isinstance(error, PartlyPublished):
                    left = [left[index] for index in error.unpublished]
                self.after_an_error()
        for key in transactions.keys() - {item.key for item in left}:
            self.journal.note("told", transactions[key])
        time.sleep(self.dice.expovariate(self.bulk_rate / MEAN_BULK))

    def relaying(self) -> None:
        """Transactions on one database, with messages of any, that take up to some seconds; some are rolled back."""
        from sqlqueue import publish

        source = self.dice.choice([*ALIASES])
        items = [
            Item(item.topic, f"{item.key}@{source}", item.id, item.do)
            for item in self.items(self._topic(but=IN_ORDER), self.dice.randint(1, 5))
        ]
        pauses = [min(3.0, self.dice.expovariate(1 / self.dice.choice([0.01, 0.05, 0.4]))) for _ in items]
        gives_up = self.dice.random() < 0.15

        def write(items: list[Item]) -> None:
            with transaction.atomic(using=source):
                for item, pause in zip(items, pauses):
                    publish(item.topic, item.payload, key=item.key, id=item.id, relay=True)
                    time.sleep(pause)
                if gives_up:
                    raise RolledBack

        self.carry_out(items, write, again=False, relayed_by=source)
        time.sleep(self.dice.expovariate(self.rate / 2))

    def _topic(self, but: str = "") -> str:
        some = {topic: weight for topic, weight in TOPICS.items() if topic != but}
        return self.dice.choices([*some], [*some.values()])[0]

    # -- one message --------------------------------------------------------------------------------------------------

    def _once(self, item: Item) -> None:
        from sqlqueue import publish

        publish(item.topic, item.payload, key=item.key, id=item.id)

    def _later(self, item: Item) -> None:
        from sqlqueue import publish

        publish(item.topic, item.payload, key=item.key, id=item.id, delay=2)

    def _in_transaction(self, item: Item) -> None:
        """Where the key belongs."""
        from sqlqueue.log.placement import destination

        gives_up = random.Random(item.id).random() < 0.1
        alias = destination(item.topic, item.key, item.id, relay=False).log.alias
        with transaction.atomic(using=alias):
            self._once(item)
            if gives_up:
                raise RolledBack

    def _on_commit(self, item: Item) -> None:
        """A failure after the commit does not say that it was one: the same is published once more."""
        from sqlqueue import publish_on_commit

        with transaction.atomic(using=self.dice.choice([*ALIASES])):
            publish_on_commit(item.topic, item.payload, key=item.key, id=item.id)
        self._once(item)


WAYS = ("direct", "many", "relaying")

if __name__ == "__main__":
    run(DatabasePublisher, WAYS)
