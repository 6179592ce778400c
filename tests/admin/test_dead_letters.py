"""Dead letters in the admin: sorted, looked through, replayed, discarded."""

import re
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import ADDITION, DELETION, LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from sqlqueue import publish
from sqlqueue.admin import dead_letters as pages
from sqlqueue.models import Message, Request, Topic
from sqlqueue.models.request import CANCELLED, NEW
from sqlqueue.operations.requests import carry_out
from sqlqueue.stats import counting, dead_letters
from tests.admin.operating import offsets, operation, through
from tests.admin.stage import EVIL, Stage
from tests.consuming import Consuming
from tests.factories import DeadLetterFactory, TopicFactory
from tests.logs import LOG

pytestmark = pytest.mark.once

FINGERPRINT = f"no way {EVIL}"
FAILURES, DEAD_LETTERS = "admin:sqlqueue_deadletter_changelist", "admin:sqlqueue_deadletter_list"
ALL = {"topic": "t", "group": "g", "fingerprint": FINGERPRINT, "all": "1"}


def get(client: Client, name: str, **wanted: object) -> str:
    response = client.get(reverse(name), wanted)
    assert response.status_code == 200
    return response.content.decode()


def action_url(name: str) -> str:
    return operation("deadletter", name)


def left() -> list[int]:
    return list(Message.objects.dead_letters("g", "t").order_by("offset").values_list("offset", flat=True))


def row(count: int) -> str:
    """Return the cells of a failure of the group "g" of "t" with so many dead letters."""
    cells = {"Topic": "t", "Group": "g", "Dead letters": count}
    return "".join(f'<td data-label="{name}">{value}</td>' for name, value in cells.items())


def test_they_are_grouped_by_failure(admin_client: Client, stage: Stage) -> None:
    for topic in ("", "t", "no such topic"):
        html = get(admin_client, FAILURES, topic=topic)
        assert row(3) in html
        assert "no way &lt;script&gt;alert" in html
        assert EVIL not in html
        assert "There are more" not in html
    assert "There are no dead letters" in get(admin_client, FAILURES, group="audit")


def test_the_page_says_when_there_are_more(admin_client: Client, stage: Stage, monkeypatch: Any) -> None:
    monkeypatch.setattr(dead_letters, "MOST_READ", 3)
    monkeypatch.setattr(dead_letters, "LEAST_READ", 1)
    assert "There are more" not in get(admin_client, FAILURES, topic="t")
    monkeypatch.setattr(dead_letters, "MOST_READ", 2)
    html = get(admin_client, FAILURES, topic="t")
    assert "There are more" in html
    assert '<td data-label="Dead letters">2</td>' in html


def test_every_page_about_dead_letters_says_when_there_are_more(
    admin_client: Client, stage: Stage, monkeypatch: Any
) -> None:
    """Also if of the group that it is about fewer were read than are."""
    Message.objects.filter(offset=stage.dead_letters[1]).update(failed_group="audit")
    which = {"topic": "t", "group": "g"}
    for most, more, about in ((3, False, "Chosen: 2<"), (2, True, "Chosen: 1 or more<")):
        monkeypatch.setattr(dead_letters, "MOST_READ", most)
        assert ("There are more" in get(admin_client, DEAD_LETTERS, **which)) == more
        asked = admin_client.post(action_url("replay"), {**which, "all": "1"}).content.decode()
        assert about in asked


@pytest.fixture
def kinds(stage: Stage) -> list[str]:
    """Failures of five topics, two of each kind; the topics' names."""
    names = [f"many-{number}" for number in range(5)]
    for topic in names:
        TopicFactory(name=f"{topic}_dlq")
        DeadLetterFactory.create_batch(2, original_topic=topic, fingerprint="no")
    return names


def test_failures_are_sorted_however_many_topics_there_are(kinds: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(counting, "AT_ONCE", 2)
    found = dead_letters.failures(LOG, kinds)
    assert sorted((kind.topic, kind.dead_letters) for kind in found.kinds) == [(name, 2) for name in kinds]
    assert (found.unread, found.hidden) == ([], 0)


def test_of_which_topics_not_all_were_read_is_said(admin_client: Client, kinds: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(dead_letters, "MOST_READ", 6)
    monkeypatch.setattr(dead_letters, "LEAST_READ", 2)  # six topics, of which "t" has three dead letters
    html = get(admin_client, FAILURES)
    assert "than were read, in: t." in html
    monkeypatch.setattr(dead_letters, "LEAST_READ", 1)
    assert f"than were read, in: {', '.join([*kinds, 't'])}." in get(admin_client, FAILURES)


def test_how_many_kinds_are_not_shown_is_said(admin_client: Client, kinds: list[str], monkeypatch: Any) -> None:
    assert "rarer failure" not in get(admin_client, FAILURES)
    monkeypatch.setattr(dead_letters, "MOST_SHOWN", 2)
    html = get(admin_client, FAILURES)
    assert row(3) in html
    assert "and 4 rarer failures" in html


def test_the_dead_letters_of_one_failure(admin_client: Client, stage: Stage) -> None:
    which = {"topic": "t", "group": "g", "fingerprint": FINGERPRINT}
    html = get(admin_client, DEAD_LETTERS, **which)
    assert offsets(html) == stage.dead_letters[::-1]
    assert EVIL not in html
    assert offsets(get(admin_client, DEAD_LETTERS, topic="t")) == stage.dead_letters[::-1]
    for other in ({"group": "audit"}, {"fingerprint": "x"}, {"fingerprint": ""}):
        assert offsets(get(admin_client, DEAD_LETTERS, **{**which, **other})) == []
    assert admin_client.get(reverse(DEAD_LETTERS), {"topic": "x"}).status_code == 404


def test_the_dead_letters_are_paged(admin_client: Client, consuming: Consuming) -> None:
    dead = Stage(consuming, dead=120).dead_letters
    pages = through(admin_client, reverse(DEAD_LETTERS) + "?topic=t")
    assert [offset for page in pages for offset in offsets(page)] == dead[::-1]


def test_a_whole_fingerprint_is_replayed_after_a_trial(admin_client: Client, stage: Stage) -> None:
    asked = admin_client.post(action_url("replay"), ALL).content.decode()
    assert "Chosen: 3" in asked
    assert EVIL not in asked
    assert not Request.objects.exists()
    done = admin_client.post(action_url("replay"), {**ALL, "confirmed": "1", "rate": "50", "trial": "on"}, follow=True)
    replay = Request.objects.get()
    assert done.redirect_chain[-1][0] == reverse("admin:sqlqueue_request_change", args=[replay.pk])
    assert (replay.topic, replay.consumer_group, replay.options["fingerprint"]) == ("t", "g", FINGERPRINT)
    assert (replay.rate, replay.options["trial"], replay.total, replay.ordered_by) == (50, True, 3, "admin")
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id) == (ADDITION, str(replay.pk))
    stage.mend()
    carry_out(LOG)
    stage.consuming.drain()
    assert stage.seen[-1] == {"dead": EVIL}
    html = admin_client.get(reverse("admin:sqlqueue_request_change", args=[replay.pk])).content.decode()
    assert "1 of 3" in html
    assert 'max="3" value="1"' in html
    assert EVIL not in html


@pytest.mark.once
def test_who_has_asked_for_a_replay_may_be_called_by_a_uuid(
    admin_client: Client, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = uuid4()
    monkeypatch.setattr(User, "get_username", lambda user: name)
    admin_client.post(action_url("replay"), {**ALL, "confirmed": "1"})
    assert Request.objects.get().ordered_by == str(name)


def test_a_selection_is_replayed(admin_client: Client, stage: Stage) -> None:
    chosen = stage.dead_letters[1:]
    asked = admin_client.post(action_url("replay"), {"topic": "t", "_selected_action": chosen}).content.decode()
    assert offsets(asked) == chosen
    admin_client.post(action_url("replay"), {"topic": "t", "_selected_action": chosen, "confirmed": "1"})
    replay = Request.objects.get()
    assert (replay.options["offsets"], replay.options["trial"], replay.rate) == (chosen, False, None)
    while carry_out(LOG):
        pass
    assert left() == stage.dead_letters[:1]


def test_nothing_chosen_is_nothing_done(admin_client: Client, stage: Stage) -> None:
    """Not even if a form comes without what it was to bring: no selection is not everything."""
    for name in ("replay", "discard"):
        answer = admin_client.post(
            action_url(name), {"topic": "t", "confirmed": "1", "reason": "x", "through": 10**9}, follow=True
        )
        assert "None of the chosen rows" in answer.content.decode()
    assert left() == stage.dead_letters
    assert not Request.objects.exists()


@pytest.mark.parametrize("rate", ["0", "-1", "x", "nan", "inf"])
def test_a_wrong_rate_is_refused(admin_client: Client, stage: Stage, rate: str) -> None:
    answer = admin_client.post(action_url("replay"), {**ALL, "confirmed": "1", "rate": rate})
    assert "errorlist" in answer.content.decode()
    assert not Request.objects.exists()


def test_a_kind_is_discarded_with_a_reason(admin_client: Client, stage: Stage) -> None:
    asked = admin_client.post(action_url("discard"), ALL).content.decode()
    through = re.search(r'name="through" value="(\d+)"', asked)
    assert through
    wanted = {**ALL, "confirmed": "1", "through": through[1]}
    assert "errorlist" in admin_client.post(action_url("discard"), {**wanted, "reason": " "}).content.decode()
    assert left() == stage.dead_letters
    # What dies meanwhile was not seen, and is not discarded.
    publish("t", {"dead": EVIL}, key="bad")
    stage.consuming.drain()
    admin_client.post(action_url("discard"), {**wanted, "reason": "obsolete <b>"})
    (survivor,) = left()
    assert survivor not in stage.dead_letters
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.object_id) == (DELETION, "t_dlq")
    assert "obsolete <b>" in entry.change_message
    assert "Discarded 3" in entry.change_message
    assert Topic.objects.filter(name="t_dlq").exists()


def test_what_one_action_leaves_is_said_and_the_next_discards_it(
    admin_client: Client, stage: Stage, monkeypatch: Any
) -> None:
    monkeypatch.setattr(pages, "MOST_DISCARDED", 2)
    wanted = {**ALL, "confirmed": "1", "reason": "x", "through": 10**9}
    html = admin_client.post(action_url("discard"), wanted, follow=True).content.decode()
    assert "Discarded 2 dead letters" in html
    assert left() == stage.dead_letters[2:]
    assert row(1) in html
    assert "Discarded 1 dead letter " in admin_client.post(action_url("discard"), wanted, follow=True).content.decode()
    assert left() == []


def test_a_selection_is_discarded(admin_client: Client, stage: Stage) -> None:
    wanted = {
        "topic": "t",
        "_selected_action": stage.dead_letters[:1],
        "confirmed": "1",
        "reason": "x",
        "through": 10**9,
    }
    admin_client.post(action_url("discard"), wanted)
    assert left() == stage.dead_letters[1:]
    # The log is not a dead-letter topic: a message that is no dead letter cannot be discarded.
    answer = admin_client.post(action_url("discard"), {**wanted, "_selected_action": stage.good}, follow=True)
    assert "None of the chosen rows" in answer.content.decode()
    assert admin_client.post(operation("deadletter", "discard", stage.good[0]), wanted).status_code == 404
    assert Message.objects.filter(offset__in=stage.good).count() == len(stage.good)


def test_a_replay_is_cancelled(admin_client: Client, stage: Stage) -> None:
    admin_client.post(action_url("replay"), {**ALL, "confirmed": "1"})
    replay = Request.objects.get()
    assert replay.state == NEW
    address = operation("request", "cancel", replay.pk)
    assert admin_client.get(address).status_code == 405
    assert "Cancelled" in admin_client.post(address, follow=True).content.decode()
    replay.refresh_from_db()
    assert replay.state == CANCELLED
    assert "nothing left to cancel" in admin_client.post(address, follow=True).content.decode()
    assert LogEntry.objects.count() == 2
    assert admin_client.post(operation("request", "cancel", 10**9)).status_code == 404
