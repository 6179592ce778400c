"""What the admin's tests look at: a topic with messages that were read, fail, and died."""

from typing import Any

from sqlqueue import Delivery, Reject, Retry, publish
from sqlqueue.models import Message
from tests.consuming import Consuming

EVIL = "<script>alert('x')</script>&"


class Stage:
    """Ten messages of the key "good", one that is retried in an hour, and dead letters."""

    def __init__(self, consuming: Consuming, dead: int = 3) -> None:
        self.consuming = consuming
        self.broken = True
        self.seen: list[Any] = []
        consuming.consumer("t", self.handle, group="g")
        consuming.consumer("t", lambda delivery: None, group="audit")
        self.good = [publish("t", {"n": n}, key="good", id=f"good-{n}").offset for n in range(10)]
        self.failing = publish("t", {"fail": EVIL}, key=EVIL, id="failing", headers={"h": EVIL}).offset
        self.died = [publish("t", {"dead": EVIL}, key="bad").offset for _ in range(dead)]
        consuming.drain()
        self.dead_letters = list(
            Message.objects.dead_letters("g", "t").order_by("offset").values_list("offset", flat=True)
        )
        assert len(self.dead_letters) == dead

    def handle(self, delivery: Delivery) -> None:
        if self.broken and "dead" in delivery.payload:
            raise Reject(f"no way {EVIL}")
        if self.broken and "fail" in delivery.payload:
            raise Retry(f"later {EVIL}", delay=3600)
        self.seen.append(delivery.payload)

    def mend(self) -> None:
        self.broken = False
