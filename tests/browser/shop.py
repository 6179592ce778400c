"""What the pages show in these tests: a shop with orders, some of which cannot be sent yet."""

from sqlqueue import Delivery, Reject, Retry, publish
from sqlqueue.log.groups import register
from sqlqueue.models import Message, ScheduledMessage, SubscriberHeartbeat
from sqlqueue.operations.topics import pause
from tests.consuming import Consuming
from tests.logs import LOG
from tests.processes import wait_until

TOPIC = "orders"
LONG_KEY, LONG_ID = "customer:" + "0123456789abcdef" * 8, "x" * 150
PATIENCE = 300  # seconds: handlers wait for the browser
EVIL = "<script>window.ran = true</script><img src=x onerror='window.ran = true'>"


class Shop:
    """Orders, and the group "mail" that sends them. Those to Atlantis are rejected until the handler is mended; one to
    Lyonesse is tried again in an hour. The group "accounts" has no trouble."""

    def __init__(self, consuming: Consuming) -> None:
        self._consuming = consuming
        self.mended = False
        self.sent: list[int] = []
        self.booked: list[int] = []
        self.open = consuming.gate()  # no order is sent before
        self.open.set()
        consuming.consumer(TOPIC, self.send, group="mail", max_attempts=3, visibility_timeout=PATIENCE)
        consuming.consumer(TOPIC, lambda delivery: self.booked.append(delivery.payload["number"]), group="accounts")

    def send(self, delivery: Delivery) -> None:
        self.open.wait()
        place = delivery.payload["to"]
        if place == "Atlantis" and not self.mended:
            raise Reject(f"no such place: {place}")
        if place == "Lyonesse" and not self.mended:
            raise Retry(f"cannot be reached: {EVIL}", delay=3600)
        self.sent.append(delivery.payload["number"])

    def order(self, *numbers: int, to: str = "Avalon") -> list[int]:
        """Publish orders; return their offsets."""
        made = [publish(TOPIC, {"number": n, "to": to, "wish": EVIL}, key=f"{to} {n % 5}", id=f"{n}") for n in numbers]
        return [one.offset for one in made if one.offset]

    def trouble(self) -> None:
        """Sell some, and wait until all are settled: four dead letters, and one that waits for its next attempt."""
        self.order(*range(20))
        self.order(*range(100, 104), to="Atlantis")
        self.order(200, to="Lyonesse")
        self._consuming.drain()
        assert Message.objects.dead_letters("mail", TOPIC).count() == 4

    def absent(self) -> None:
        """Let a group be away."""
        register(LOG, "archive", TOPIC, start="earliest")

    def crowd(self) -> None:
        """Be in trouble, with names, keys and ids as long as they come."""
        self.trouble()
        self.absent()
        for number in range(3):
            publish(TOPIC, {"text": "word " * 60, "n": "9" * 120}, key=f"{LONG_KEY}{number}", id=f"{LONG_ID}{number}")
        publish("a-topic-that-has-no-group-and-a-name-of-some-length", 1)
        publish(TOPIC, {"text": "z" * 300}, key=LONG_KEY, delay=3600)
        ScheduledMessage.objects.create(
            topic="no such name!", payload=1, refused=True, refusal="it is no name: " + "y" * 90
        )
        register(LOG, "bookkeeping-and-everything-that-belongs-to-it", TOPIC, start="earliest")
        pause(LOG, TOPIC, "bookkeeping-and-everything-that-belongs-to-it")

    def serve(self) -> None:
        """Have consumers at work, a process's worth for each group; return when they are."""
        self._hosts = {group: self._consuming.start(group) for group in ("mail", "accounts")}
        names = [host.name for host in self._hosts.values()]
        wait_until(lambda: SubscriberHeartbeat.objects.alive().filter(subscriber__in=names).count() == len(names))

    def paused(self, group: str) -> bool:
        """Tell whether a group's consumers have noticed that it is paused."""
        return all(subscription.paused for subscription in self._hosts[group].subscriber.subscriptions)
