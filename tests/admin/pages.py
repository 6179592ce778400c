"""Every page about messages, dead letters and replays, as a person meets it in a crowd."""

from datetime import datetime, timedelta, timezone
from urllib.parse import urlencode

from django.urls import reverse

from sqlqueue.models import Message, Replay

Visit = tuple[str, dict[str, object] | None]  # an address, and what is sent to it, if anything is


def visits() -> dict[str, Visit]:
    """Return them by name. None changes anything."""
    messages = reverse("admin:sqlqueue_message_changelist")
    kinds, letters = reverse("admin:sqlqueue_message_dead_letters"), reverse("admin:sqlqueue_message_letters")
    letter = Message.objects.dead_letters("", "t").order_by("-offset")[0]
    some = list(Message.objects.dead_letters("", "t").order_by("-offset").values_list("offset", flat=True)[:100])
    highest = Message.objects.order_by("-offset")[0].offset
    middle = Message.objects.filter(offset__gte=highest // 2).order_by("offset")[0].offset
    when = (datetime.now(timezone.utc) - timedelta(hours=12)).strftime("%Y-%m-%dT%H:%M")

    def of(base: str, **wanted: object) -> Visit:
        return f"{base}?{urlencode(wanted)}", None

    def ordered(kind: str, name: str, **values: object) -> Visit:
        return reverse(f"admin:sqlqueue_message_{kind}", args=[name]), values

    kind = {"topic": "t", "group": letter.failed_group, "fingerprint": letter.fingerprint}
    return {
        "messages": of(messages),
        "messages, older": of(messages, before=middle),
        "messages, newer": of(messages, after=middle),
        "a topic": of(messages, topic="t"),
        "a topic, older": of(messages, topic="t", before=middle),
        "a topic, newer": of(messages, topic="t", after=middle),
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
        "an order about 100 messages": ordered("order", "reschedule", _selected_action=some),
        "dead letters": of(kinds),
        "dead letters of a topic": of(kinds, topic="t"),
        "dead letters of a group": of(kinds, topic="t", group="g3"),
        "letters": of(letters, topic="t"),
        "letters of a kind": of(letters, **kind),
        "letters, older": of(letters, topic="t", before=some[60]),
        "letters, newer": of(letters, topic="t", after=some[60]),
        "replay of a kind": ordered("letter_order", "replay", **kind, all="1"),
        "replay of all letters": ordered("letter_order", "replay", topic="t", all="1"),
        "discarding of 100 letters": ordered("letter_order", "discard", topic="t", _selected_action=some),
        "replays": of(reverse("admin:sqlqueue_replay_changelist")),
        "a replay": (reverse("admin:sqlqueue_replay_change", args=[Replay.objects.order_by("-pk")[0].pk]), None),
    }
