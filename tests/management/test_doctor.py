"""The doctor judges what was read; each finding says what to do."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sqlqueue.database.limits import ServerLimits
from sqlqueue.management import doctor
from sqlqueue.management.doctor import OK, ClockSkew, Diagnosis, examine
from sqlqueue.stats.findings import ERROR, NOTE, WARNING
from tests.documents import ROOT


def handler(name: str, timeout: float) -> Any:
    return SimpleNamespace(name=name, options=SimpleNamespace(visibility_timeout=timeout))


MAIL = handler("shop.mail", 60.0)
WELL: Any = SimpleNamespace(
    pending=True,
    limits=ServerLimits("read committed", 151, 12, 28_800.0, 50.0),
    connection={"CONN_MAX_AGE": 300, "CONN_HEALTH_CHECKS": False},
    processes=2,
    threads=4,
    handlers=(MAIL,),
    periodic=False,
    others=0,
    forwarded=None,
)


def changed(**changes: object) -> Any:
    return SimpleNamespace(**{**vars(WELL), **changes})


def of(about: str, read: Any) -> list[Diagnosis]:
    return [finding for finding in examine(read) if finding.about == about]


def levels(about: str, **changes: object) -> list[str]:
    return [finding.level for finding in of(about, changed(**changes))]


def kept(age: float | None, checks: bool = False) -> dict[str, object]:
    return {"CONN_MAX_AGE": age, "CONN_HEALTH_CHECKS": checks}


def limits(**changes: object) -> ServerLimits:
    return replace(WELL.limits, **changes)


@pytest.fixture(autouse=True)
def patient(settings: Any) -> None:
    settings.SQLQUEUE = {"SHUTDOWN_TIMEOUT": 60}


def test_what_is_well_is_counted() -> None:
    assert examine(WELL)[-1] == Diagnosis(OK, "all else", "3 of 5 examinations have found nothing")


def test_the_arithmetic_of_connections_is_the_documents() -> None:
    for document in ("guide.md", "operations/deployment.md"):
        assert f"processes × (2 × threads + {doctor.OWN_CONNECTIONS})" in (ROOT / "docs" / document).read_text()
    [found] = of("connections", WELL)
    assert "2 × (2 × 4 threads + 7) = 30 for the consumers, of 151; 12 are open now" in found.text
    [found] = of("connections", changed(periodic=True))
    assert "2 × (2 × 4 threads + 8) = 32 for the consumers" in found.text
    [found] = of("connections", changed(others=2))
    assert "2 × (2 × 4 threads + 7) + 2 × 2 × 2 × 4 of other databases = 62 for the consumers" in found.text
    formula = ("processes × (2 × threads + 7)", "(n − 1) × processes × 2 × threads")
    assert all(part in (ROOT / "docs/databases.md").read_text() for part in formula)


@pytest.mark.parametrize(("processes", "level"), [(8, OK), (9, WARNING), (10, WARNING), (11, ERROR)])
def test_connections(processes: int, level: str) -> None:
    assert levels("connections", processes=processes) == [level]


def test_connections_of_a_pooler() -> None:
    """It lets in more than the server does."""
    [found] = of("connections", changed(processes=20, limits=limits(pooled=True)))
    assert found.level == OK
    assert "= 300 for the consumers, which a pooler has to let in" in found.text


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"connection": kept(None)}, [WARNING]),
        ({"connection": kept(28_800)}, [WARNING]),
        ({"connection": kept(None, True)}, []),
        ({"limits": limits(idle_timeout=60.0)}, [WARNING]),
        ({"limits": limits(idle_timeout=5.0), "connection": kept(0)}, [NOTE]),
        ({"limits": limits(idle_timeout=61.0), "connection": kept(60)}, []),
        ({"connection": kept(0)}, [NOTE]),
        ({"limits": ServerLimits("serializable"), "connection": kept(0)}, []),
    ],
)
def test_idle_connections(changes: dict[str, object], found: list[str]) -> None:
    assert levels("idle connections", **changes) == found


@pytest.mark.parametrize(("wait", "found"), [(59.0, []), (60.0, [WARNING]), (None, [])])
def test_lock_waits(wait: float | None, found: list[str]) -> None:
    assert levels("lock waits", limits=limits(lock_wait=wait)) == found


def test_handlers_that_may_outlive_a_stop() -> None:
    longer = (
        MAIL,
        handler("shop.report", 600.0),
        handler("shop.sum", 90.0),
    )
    [found] = of("stopping", changed(handlers=longer))
    assert found.level == NOTE
    assert "shop.report and 1 more may run for 600 s" in found.text


def test_nothing_else_is_examined_before_the_tables_are_there() -> None:
    [found] = of("migrations", WELL)
    assert found.level == ERROR
    assert not of("indexes", WELL)


@pytest.mark.parametrize(("ahead", "level"), [(0.3, OK), (-0.3, OK), (1.2, OK), (3.0, NOTE), (-3600.0, WARNING)])
def test_clocks(ahead: float, level: str) -> None:
    [found] = doctor.clock(changed(clock=ClockSkew(ahead, 0.25)))
    assert found.level == level
    assert ("behind" if ahead < 0 else "ahead") in found.text
