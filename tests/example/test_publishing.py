"""The file is published in transactions, in its order, and never twice."""

import pytest
from django.core.management import CommandError, call_command

from example_project.flights import publishing
from example_project.flights.data import read_flights
from example_project.flights.models import PublishedBatch
from example_project.flights.publishing import OtherPublisher, publish_flights
from sqlqueue.models import Message

pytestmark = pytest.mark.django_db


def published_ids() -> list[str]:
    return list(Message.objects.filter(topic="flights").order_by("offset").values_list("message_id", flat=True))


def ids_of_the_file(stop: int) -> list[str]:
    return [flight.id for flight in read_flights(stop)]


def test_flights_are_published_in_batches_and_in_order() -> None:
    assert list(publish_flights(120, batch_rows=50)) == [50, 50, 20]
    assert published_ids() == ids_of_the_file(120)
    message = Message.objects.filter(topic="flights").earliest("offset")
    first = next(read_flights())
    assert (message.payload, message.partition_key) == (first.payload(), "N14228")


def test_published_flights_are_not_published_again() -> None:
    list(publish_flights(60, batch_rows=50))
    assert list(publish_flights(60, batch_rows=50)) == []
    assert list(publish_flights(40, batch_rows=50)) == []
    assert list(publish_flights(130, batch_rows=50)) == [50, 20]
    assert published_ids() == ids_of_the_file(130)


def test_a_run_that_was_cut_short_goes_on_where_it_stopped() -> None:
    cut_short = publish_flights(150, batch_rows=50)
    next(cut_short)
    cut_short.close()
    assert list(publish_flights(150, batch_rows=50)) == [50, 50]
    assert published_ids() == ids_of_the_file(150)


def test_the_same_flight_is_one_message_even_if_the_batches_are_forgotten() -> None:
    list(publish_flights(1_000))
    PublishedBatch.objects.all().delete()
    list(publish_flights(1_000))
    assert published_ids() == ids_of_the_file(1_000)


def test_a_batch_that_cannot_be_published_is_not_marked_as_published(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(publishing, "publish_many", fail)
    with pytest.raises(RuntimeError, match="no room"):
        list(publish_flights(10))
    assert PublishedBatch.objects.published_rows() == 0


def test_two_publishers_cannot_publish_the_same_rows() -> None:
    other = publish_flights(100, batch_rows=50)
    next(other)
    PublishedBatch.objects.create(start=50, stop=100)
    with pytest.raises(OtherPublisher, match="Rows 50 to 100"):
        next(other)
    assert published_ids() == ids_of_the_file(50)


@pytest.mark.parametrize("flights", [0, -1, 336_777])
def test_a_number_of_flights_that_the_file_does_not_have_is_refused(flights: int) -> None:
    with pytest.raises(CommandError, match="between 1 and 336,776"):
        call_command("publishflights", flights=flights)
