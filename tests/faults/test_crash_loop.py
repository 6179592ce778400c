"""A message whose handler ends its process, as the kernel does when memory runs out: operators are told so at once, and
for as long as it happens again."""

import re
import socket
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from sqlqueue import NewMessage, publish_many
from sqlqueue.consumers.process.process_group import ProcessGroup
from sqlqueue.leases import heartbeat, release
from sqlqueue.leases.heartbeat import in_doubt
from sqlqueue.models import DeliveryState, Message, Offset, PartitionLease, SubscriberHeartbeat
from sqlqueue.stats.attention import findings
from sqlqueue.stats.findings import DEATHS, NO_CONSUMERS, Finding
from sqlqueue.stats.survey import survey
from tests.asking import ask
from tests.consumer_processes import Consumers
from tests.logs import LOG
from tests.processes import ManageCommand, wait_until

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture
def command(consumers: Consumers, port: int) -> ManageCommand:
    """Consumers whose processes die of each of three messages."""
    for number in range(3):
        consumers.publish("endless", f"deadly-{number}", then="kill")
    return consumers.start("endless", processes=1, metrics_port=port)


def found(kind: str) -> list[Finding]:
    return [one for one in findings(survey(LOG)) if one.kind == kind]


def test_a_crash_loop_is_told_with_exit_message_and_next_restart(command: ManageCommand, port: int) -> None:
    command.wait_for_line("event=process_died .*exit=-9")
    said: list[str] = []
    waiting: list[str] = []
    until = time.monotonic() + 8
    while time.monotonic() < until:
        assert not found(NO_CONSUMERS), "it says that no process was started"
        (finding,) = found(DEATHS)  # at every moment, whether one lives or not
        said.append(finding.text)
        waiting += [finding.text] if "is started in" in finding.text else []
        time.sleep(0.1)
    assert all("SIGKILL" in text for text in said)
    assert re.search(r"In doubt is default of endless\[\d\]@\d+", said[-1]), said[-1]
    assert waiting, said

    wait_until(lambda: counted(port, "sqlqueue_process_deaths_total", exit="SIGKILL") >= 3)
    assert counted(port, "sqlqueue_dead_processes") >= 1


def counted(port: int, name: str, **labels: str) -> float:
    families = text_string_to_metric_families(ask(port, "/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


def test_a_death_is_told_until_a_successor_has_lived_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    heartbeat.beat(LOG, "dead", [("ship", "orders"), ("bill", "orders")], 60)
    group = ProcessGroup(LOG, 1)
    group.record_death("dead", -9, 12.0)
    row = SubscriberHeartbeat.objects.get(subscriber="dead")
    assert (row.topic, row.exit_status) == ("orders", -9)
    assert not SubscriberHeartbeat.objects.alive().exists()
    (finding,) = found(DEATHS)
    assert "12 s" in finding.text or "11 s" in finding.text

    group.forget_deaths([])
    heartbeat.remove_dead(LOG, 0.0)
    assert found(DEATHS), "its row was removed as an expired one is"
    group.forget_deaths([time.monotonic()])
    wait_until(lambda: not found(DEATHS))


def test_one_that_dies_before_its_first_heartbeat_is_told_too() -> None:
    ProcessGroup(LOG, 1).record_death("unborn", 1, 0.5)
    (finding,) = found(DEATHS)
    assert "(1)" in finding.text
    assert release.free(LOG, "unborn") == 0


def test_a_death_names_some_of_many_messages_in_doubt(settings: Settings) -> None:
    """Those that it had claimed, and that no other process has recovered yet; of one that was alone only that one."""
    settings.SQLQUEUE = {"PARTITIONS": 1}
    publish_many("orders", [NewMessage(number) for number in range(5)])
    sent = list(Message.objects.filter(topic="orders").order_by("offset").values_list("offset", flat=True))
    place = {"topic": "orders", "consumer_group": "ship", "partition": 0}
    PartitionLease.objects.create(**place, holder="dead", fencing_token=1)
    last = sent[-1]
    Offset.objects.create(**place, position=0, offset_acked=0, claimed_to=last, fencing_token=1)
    text = in_doubt(LOG, "dead")
    assert text.count("ship of orders[0]@") == 3
    assert text.endswith(", …")
    DeliveryState.objects.create(**place, message_offset=sent[1], in_flight=1)
    DeliveryState.objects.create(**place, message_offset=last, in_flight=2)
    assert in_doubt(LOG, "dead") == f"ship of orders[0]@{last}"
    assert in_doubt(LOG, "another") == ""
