"""Two thousand real flights, published, consumed by all groups and compared with the direct computation."""

from collections import Counter

import pytest
from django.core.management import call_command

from example_project.flights.check import Check, check_flights
from example_project.flights.models import Aircraft
from sqlqueue.testing import drain

pytestmark = pytest.mark.django_db

FLIGHTS = 2_000


def failures(check: Check) -> list[str]:
    return [f"{comparison}: {comparison.differences[:2]}" for comparison in check.comparisons if not comparison.holds]


def consumed(flights: int) -> Check:
    call_command("publishflights", flights=flights)
    drain(timeout=240)
    return check_flights()


@pytest.mark.database("mariadb", "mysql", "postgresql")  # the demo's tests do it on SQLite
def test_every_group_makes_what_the_direct_computation_makes_and_again_changes_nothing() -> None:
    first = consumed(FLIGHTS)
    assert not failures(first)
    assert first.settled == {"aircraft": FLIGHTS, "delays": FLIGHTS, "alerts": FLIGHTS}
    # What fails is a dead letter, of the alerts only.
    kinds = Counter((letter.group, letter.reason, letter.attempts) for letter in first.dead_letters)
    assert kinds == {("alerts", "no tail number", 1): 2, ("alerts", "never departed", 3): 10}
    again = consumed(FLIGHTS)
    assert not failures(again)
    assert again.dead_letters == first.dead_letters


def test_an_altered_digest_is_found() -> None:
    consumed(200)
    altered = Aircraft.objects.order_by("tail_number").first()
    assert altered
    Aircraft.objects.filter(pk=altered.pk).update(digest="0" * 64)
    (failing,) = [comparison for comparison in check_flights().comparisons if not comparison.holds]
    assert failing.promise == "order per aircraft"
    assert [difference.key for difference in failing.differences] == [altered.tail_number]


def test_the_check_fails_while_flights_are_not_consumed(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("publishflights", flights=50)
    with pytest.raises(SystemExit) as left:
        call_command("checkflights")
    assert left.value.code == 1
    said = capsys.readouterr().out
    assert "OK   published: 50 of 50 flights are in the log once" in said
    assert "FAIL settled: 0 of 3 groups have settled every flight" in said
    assert "FAIL order per aircraft: 0 of " in said
