"""The pages of batches: their progress, who may cancel one and retry what has failed."""

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from sqlqueue import Batch, Delivery, Reject, get_batch
from sqlqueue.contrib.batches.retry import retry_failed
from sqlqueue.models import Message
from tests.admin.test_overview import page, words
from tests.consuming import Consuming

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/sqlqueue_batches/batch/"


def address(name: str, id: str) -> str:
    if name != "change":
        return reverse("admin:sqlqueue_batches_batch_operation", args=[id, name])
    return reverse("admin:sqlqueue_batches_batch_change", args=[id])


@pytest.fixture
def failed(consuming: Consuming) -> str:
    """Return a batch of four members, of which two are dead letters at first."""
    seen: list[int] = []

    def handle(delivery: Delivery) -> None:
        seen.append(delivery.payload)
        if delivery.payload > 2 and seen.count(delivery.payload) == 1:
            raise Reject("no")

    consuming.consumer("t", handle)
    consuming.consumer("u", lambda delivery: None)
    with Batch(name="four <b>", on_finish=("u", 1), then=[("u", 2)]) as batch:
        batch.publish_many("t", [1, 2, 3, 4])
    with Batch() as other:
        other.publish("t", 9)
    consuming.drain()
    return batch.id


def test_the_list_shows_how_far_they_are(admin_client: Client, failed: str) -> None:
    with Batch(name="later") as later:
        later.publish("t", 1)
    html = page(admin_client, LIST)
    assert html.index("later") < html.index("four &lt;b&gt;")  # the newest first
    assert 'max="4" value="2"' in html
    assert "2 of 4" in words(html)
    later.cancel()
    html = page(admin_client, LIST)
    assert html.index("four &lt;b&gt;") < html.index("later")  # it is over


def test_the_list_is_paged_and_reads_all_statuses_at_once(
    admin_client: Client, django_assert_max_num_queries: Callable[..., Any], consuming: Consuming
) -> None:
    for number in range(60):
        with Batch(name=f"batch-{number}") as batch:
            if number % 2:
                batch.publish("unread", 1)
    with django_assert_max_num_queries(16):
        html = page(admin_client, LIST)
    assert "batch-59" in html
    assert "batch-2<" not in html
    (link,) = {part.split('"')[0] for part in html.split('href="')[1:] if part.startswith("?from=")}
    assert "batch-2<" in page(admin_client, LIST + link.replace("&amp;", "&"))


def test_a_page_shows_the_progress_and_what_comes(admin_client: Client, failed: str) -> None:
    text = words(html := page(admin_client, address("change", failed)))
    assert 'max="4" value="4"' in html
    assert "4 of 4: finished" in text
    assert "on_finish u" in text
    assert "Steps to come 1" in text
    assert "four &lt;b&gt;" in html


def test_an_empty_one_and_one_in_another_have_a_page(admin_client: Client, consuming: Consuming) -> None:
    with Batch(deadline=60) as outer, Batch(parent=outer) as inner:
        pass
    assert 'max="1" value="1"' in page(admin_client, address("change", outer.id))
    assert address("change", outer.id) in page(admin_client, address("change", inner.id))


def test_retrying_what_has_failed(staff: Callable[..., Client], failed: str, consuming: Consuming) -> None:
    operator = staff("view_batch", "replay_message")
    response = operator.post(address("retry", failed), follow=True)
    assert "2 dead letters are delivered again." in response.content.decode()
    assert LogEntry.objects.count() == 1
    assert Message.objects.filter(topic="t_dlq").count() == 1  # that of the other batch
    consuming.drain()
    status = get_batch(failed)
    assert status is not None
    assert (status.state, status.done) == ("succeeded", 5)
    assert address("retry", failed) not in page(operator, address("change", failed))
    assert "0 dead letters" in operator.post(address("retry", failed), follow=True).content.decode()


def test_what_has_failed_in_a_batch_inside_is_retried_from_the_outer_one(
    staff: Callable[..., Client], consuming: Consuming, failed: str
) -> None:
    with Batch() as outer, Batch(parent=outer) as inner:
        inner.publish("t", 5)
    consuming.drain()
    operator = staff("view_batch", "replay_message")
    assert address("retry", outer.id) in page(operator, address("change", outer.id))
    operator.post(address("retry", outer.id))
    consuming.drain()
    for batch, state in ((outer.id, "succeeded"), (inner.id, "succeeded"), (failed, "finished")):
        status = get_batch(batch)
        assert status is not None
        assert status.state == state
    assert address("retry", outer.id) not in page(operator, address("change", outer.id))


def test_no_more_is_retried_than_asked_for(failed: str) -> None:
    assert retry_failed(failed, 1) == 1
    assert retry_failed(failed) == 1


def test_cancelling(staff: Callable[..., Client], consuming: Consuming) -> None:
    with Batch() as batch:
        batch.publish("t", 1)
    operator = staff("view_batch", "cancel_batch")
    assert address("cancel", batch.id) in page(operator, address("change", batch.id))
    operator.post(address("cancel", batch.id))
    text = words(page(operator, address("change", batch.id)))
    assert "cancelled" in text
    operator.post(address("cancel", batch.id))
    assert LogEntry.objects.count() == 1


def test_each_needs_its_permission_a_post_and_a_token(staff: Callable[..., Client], failed: str) -> None:
    guest, stranger = staff("view_batch"), staff("view_topic")
    html = page(guest, address("change", failed))
    assert stranger.get(address("change", failed)).status_code == 403
    assert stranger.get(LIST).status_code == 403
    for name, permission in (("cancel", "cancel_batch"), ("retry", "replay_message")):
        assert address(name, failed) not in html
        assert guest.post(address(name, failed)).status_code == 403
        assert staff("view_batch", permission).get(address(name, failed)).status_code == 405
        assert staff("view_batch", permission, csrf=True).post(address(name, failed)).status_code == 403
    status = get_batch(failed)
    assert status is not None
    assert (status.cancelled_at, status.failed) == (None, 2)


def test_a_batch_that_is_gone_is_not_found(admin_client: Client) -> None:
    for name in ("cancel", "retry"):
        assert admin_client.post(address(name, "gone")).status_code == 404
    assert admin_client.get(address("change", "gone")).status_code == 404
