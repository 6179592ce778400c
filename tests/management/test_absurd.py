"""Arguments that make no sense: each command says so, and shows no traceback."""

import pytest

from sqlqueue import publish
from sqlqueue.log import groups
from tests.logs import LOG
from tests.management.running import run

pytestmark = [pytest.mark.once, pytest.mark.django_db(transaction=True)]

BROKEN = "\udcff"  # a byte that is not UTF-8, as it is in sys.argv
ABSURD = (BROKEN, "", "(", "9" * 40, "NaN", "1e400", "0001-01-01T00:00", "9999-12-31T23:59:59", "2026-02-30", "x" * 300)
CASES = (
    "queuestatus --topic=? --group=?",
    "queuestatus --topic=? --group=?",
    "queuetail ? --no-follow",
    "queuetail t --no-follow --from=?",
    "queuetail t --no-follow --key=?",
    "queuetail t --no-follow --group=?",
    "queuepublish ? 1 --dry-run",
    "queuepublish t ? --dry-run",
    "queuepublish t 1 --dry-run --key=?",
    "queuepublish t 1 --dry-run --id=?",
    "queuepublish t 1 --dry-run --header=a=?",
    "queuepublish t --messages ?",
    "queuedlq list --topic=? --group=?",
    "queuedlq replay t --no-input --group=? --fingerprint=?",
    "queuedlq discard ? --no-input",
    "queuemessage ? --id=?",
    "queuegroup skip t --group=g --no-input --to=?",
    "queuegroup remove t ? --no-input",
    "queuegroup rewind t --dry-run --all-groups --from=?",
    "queuegroup rewind t --dry-run --from=1 --group=?",
    "queuepause ?",
    "queueschedules pause ?",
    "queueschedules run ?",
    "queueschedules upcoming ?",
    "queueresume t --group=?",
    "runconsumers --check --group=?",
    "runconsumers --check --health-port=0 --health-address=?",
    "queueanalytics --dry-run --topic=? --archive=/nowhere",
    "queuearchive /nowhere --dry-run --topic=?",
)


@pytest.mark.parametrize("case", CASES)
def test_a_command_takes_or_refuses_every_text(case: str) -> None:
    publish("t", 1, key="k")
    groups.register(LOG, "g", "t")
    name, *words = case.split()
    for value in ABSURD:
        said = run(name, *(word.replace("?", value) for word in words))
        assert said.code in (0, 1), (value, said)
        (said.out + said.err).encode()
        if value == BROKEN and "messages" not in case:
            assert said.code == 1
            assert "not text in UTF-8" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ("queuearchive", "/nowhere", "--segment-rows"),
        ("queuearchive", "/nowhere", "--receipt-lag"),
        ("queuearchive", "/nowhere", "--wait"),
        ("queueanalytics", "--receipt-lag"),
        ("queueanalytics", "--wait"),
        ("queuebackfill", "t", "/nowhere.csv", "--writers"),
        ("queuerehydrate", "/nowhere", "t", "--writers"),
        ("queuerehydrate", "/nowhere", "t", "--from"),
        ("queuerehydrate", "/nowhere", "t", "--to"),
    ],
    ids=" ".join,
)
def test_a_pipeline_refuses_every_absurd_number(words: tuple[str, ...]) -> None:
    *words, option = words
    for value in ("-1", "NaN", "inf", "1e400", "9" * 40, "x"):
        said = run(*words, f"{option}={value}")
        assert said.code == 1
        assert value[:30] in said.err
