"""The pages of periodic schedules: what they show, and who may pause and run one."""

from collections.abc import Callable

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from sqlqueue.models import PeriodicSchedule
from tests.admin.operating import operation
from tests.admin.test_overview import page, words
from tests.log.test_ticks import declared, ids, last_due, row, schedule, set_back

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.once]

LIST = "/admin/sqlqueue/periodicschedule/"


def address(name: str) -> str:
    if name != "change":
        return operation("periodicschedule", name, "job")
    return reverse("admin:sqlqueue_periodicschedule_change", args=["job"])


def test_the_list_shows_when_and_unusual_states(admin_client: Client) -> None:
    declared(schedule(every=300), schedule("gone"))
    set_back("gone", last_due(60), attended=False)
    text = words(page(admin_client, LIST))
    assert "every 0:05:00" in text
    assert "in no running process" in text


def test_the_list_reads_all_statuses_at_once(admin_client: Client, django_assert_max_num_queries: Callable) -> None:
    declared(*(schedule(f"job{number}") for number in range(30)))
    with django_assert_max_num_queries(12):
        page(admin_client, LIST)


def test_a_page_shows_the_next_week(admin_client: Client) -> None:
    declared(schedule(every=86_400))
    html = page(admin_client, address("change"))
    assert html.count("<li>20") == 7
    assert "the last one is published" in html


def test_a_page_shows_a_bounded_number_of_ticks(admin_client: Client) -> None:
    declared(schedule(every=1))
    html = page(admin_client, address("change"))
    assert html.count("<li>20") == 100
    assert "Only the first ones are shown." in html


def test_a_page_says_why_a_schedule_is_refused(admin_client: Client) -> None:
    declared(schedule())
    PeriodicSchedule.objects.update(refusal="topic <b> is not declared")
    assert "topic &lt;b&gt; is not declared" in page(admin_client, address("change"))


def test_pausing_and_resuming(staff: Callable[..., Client]) -> None:
    declared(schedule())
    operator = staff("view_periodicschedule", "pause_periodicschedule")
    operator.post(address("pause"))
    assert row().paused
    assert "No tick is published" in page(operator, address("change"))
    operator.post(address("resume"))
    assert not row().paused
    operator.post(LIST, {"action": "pause", "_selected_action": ["job"]})
    assert row().paused
    assert LogEntry.objects.count() == 3


def test_running_now(staff: Callable[..., Client]) -> None:
    declared(schedule())
    operator = staff("view_periodicschedule", "run_periodicschedule")
    response = operator.post(address("run"), follow=True)
    (id,) = ids()
    assert id.startswith("job@run-")
    assert f"Published {id}." in response.content.decode()
    assert LogEntry.objects.count() == 1


def test_a_schedule_that_is_gone_is_not_found(admin_client: Client) -> None:
    assert admin_client.get(address("change")).status_code == 404
    assert admin_client.post(address("run")).status_code == 404
