"""Every page about messages, dead letters and replays, as a person meets it in a crowd."""

from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

from django.urls import reverse

from sqlqueue.models import ConsumerGroup, Message, Request
from tests.admin.operating import operation

Visit = tuple[str, dict[str, object] | None]  # an address, and what is sent to it, if anything is


def visits() -> dict[str, Visit]:
    """Return them by name. None changes anything."""
    messages = reverse("admin:sqlqueue_message_changelist")
    kinds, letters = reverse("admin:sqlqueue_deadletter_changelist"), reverse("admin:sqlqueue_deadletter_list")
    letter = Message.objects.dead_letters("", "t").order_by("-offset")[0]
    some = list(Message.objects.dead_letters("", "t").order_by("-offset").values_list("offset", flat=True)[:100])
    highest = Message.objects.order_by("-offset")[0].offset
    middle = Message.objects.filter(offset__gte=highest // 2).order_by("offset")[0].offset
    when = (datetime.now(timezone.utc) - timedelta(hours=12)).strftime("%Y-%m-%dT%H:%M")

    def of(base: str, **wanted: object) -> Visit:
        return f"{base}?{urlencode(wanted)}", None

    def ordered(model: str, name: str, **values: object) -> Visit:
        return operation(model, name), values

    group = ConsumerGroup.objects.filter(topic="t").order_by("consumer_group")[0]
    kind = {"topic": "t", "group": letter.failed_group, "fingerprint": letter.fingerprint}
    return {
        "messages": of(messages),
        "messages, onward": of(messages, **{"from": f"[0, {middle}]"}),
        "a topic": of(messages, topic="t"),
        "a topic, onward": of(messages, topic="t", **{"from": f"[0, {middle}]"}),
        "a topic with priorities": of(messages, topic="busy"),
        "by offset": of(messages, offset=middle),
        "by id": of(messages, topic="t", message_id="id-4242"),
        "by key": of(messages, topic="t", key="k17"),
        "by a key that is not there": of(messages, topic="busy", key="nobody's"),
        "a dead letter by key": of(messages, topic="t_dlq", key="k17"),
        "since a time": of(messages, since=when),
        "a topic until a time": of(messages, topic="t", until=when),
        "a message": (reverse("admin:sqlqueue_message_change", args=[letter.original_offset]), None),
        "a dead letter": (reverse("admin:sqlqueue_message_change", args=[letter.offset]), None),
        "a deletion of 100 messages": ordered(
            "message", "delete", _selected_action=[one + 1 for one in range(highest - 100, highest)]
        ),
        "a purge": (operation("topic", "purge", "t"), None),
        "a rescheduling of many": (operation("consumergroup", "reschedule", group.pk), None),
        "a rescheduling of many, counted": of(
            operation("consumergroup", "reschedule", group.pk), error="x", delay=0, count=1
        ),
        "an action on 100 messages": ordered("message", "reschedule", _selected_action=some),
        "failures": of(kinds),
        "failures of a topic": of(kinds, topic="t"),
        "failures of a group": of(kinds, topic="t", group="g3"),
        "dead letters": of(letters, topic="t"),
        "dead letters of a failure": of(letters, **kind),
        "dead letters, onward": of(letters, topic="t", **{"from": f"[0, {some[60]}]"}),
        "replay of a failure": ordered("deadletter", "replay", **kind, all="1"),
        "replay of all dead letters": ordered("deadletter", "replay", topic="t", all="1"),
        "discarding of 100 dead letters": ordered("deadletter", "discard", topic="t", _selected_action=some),
        "requests": of(reverse("admin:sqlqueue_request_changelist")),
        "a request": (reverse("admin:sqlqueue_request_change", args=[Request.objects.order_by("-pk")[0].pk]), None),
    }
