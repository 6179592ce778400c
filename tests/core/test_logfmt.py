"""Every log line reads `event=… name=value …`, and every event is in the documents."""

import ast
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlqueue import signals
from sqlqueue.core.logfmt import lines_below, logfmt
from sqlqueue.monitoring import logs
from sqlqueue.monitoring.logs import JSONLines

pytestmark = pytest.mark.once

logger = logging.getLogger("sqlqueue")

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "docs" / "operations" / "logging.md"
MODULES = sorted((ROOT / "sqlqueue").rglob("*.py"))
FACT = re.compile(r'(?P<name>\w+)=(?P<value>"(?:[^"\\]|\\.)*"|[^ "=]+)')
LEVELS = ("debug", "info", "warning", "error", "critical", "exception")
ROW = re.compile(r"^\| (?P<events>`\w+`(?:, `\w+`)*) \| (?P<levels>[a-z, ]+) \|", re.MULTILINE)


def facts(text: str) -> dict[str, str]:
    """Take a line apart, as a script would; nothing may be left over."""
    assert FACT.sub("", text).strip(" ") == "", text
    return {
        match["name"]: json.loads(match["value"]) if match["value"].startswith('"') else match["value"]
        for match in FACT.finditer(text)
    }


@given(st.text(), st.text())
def test_a_line_can_be_taken_apart_whatever_its_values_are(first: str, second: str) -> None:
    text = logfmt("seen", first=first, second=second)
    assert facts(text) == {"event": "seen", "first": first, "second": second}
    assert text.isprintable()


def test_an_error_is_its_class_and_what_it_says() -> None:
    assert logfmt("seen", error=ValueError("a b")) == """event=seen error="ValueError('a b')\""""


def test_a_value_that_cannot_be_described_does_no_harm() -> None:
    class Mute(Exception):
        def __repr__(self) -> str:
            raise ValueError

    assert facts(logfmt("seen", error=Mute()))["error"].endswith("Mute, which cannot be described")


def test_a_signals_partitions_are_ranges_and_its_error_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sqlqueue")
    sent = {"signal": None, "sender": None}
    logs.RECEIVERS[signals.lease_acquired](**sent, database="", topic="t", partitions=[7, 0, 2, 1])
    logs.RECEIVERS[signals.dead_lettered](**sent, database="b", error="Traceback:\n  at\nValueError: no\n")
    logs.RECEIVERS[signals.group_away](**sent, database="", group="g")
    assert [record.getMessage() for record in caplog.records] == [
        "event=lease_acquired topic=t partitions=0-2,7",
        'event=dead_lettered database=b error="ValueError: no"',
        'event=group_away group=g meaning="no process serves it, and collection waits for it"',
    ]


def logging_calls() -> Iterator[tuple[Path, ast.Call]]:
    for file in MODULES:
        for node in ast.walk(ast.parse(file.read_text(), str(file))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                spoken_to = ast.unparse(node.func.value)
                if node.func.attr in LEVELS and spoken_to.rpartition(".")[2].endswith(("logger", "logging")):
                    yield file, node


def lines_of(call: ast.Call) -> list[ast.Call]:
    """The calls of logfmt() in a logging call's arguments."""
    return [arg for arg in call.args if isinstance(arg, ast.Call) and ast.unparse(arg.func).endswith("logfmt")]


def is_plan(call: ast.Call) -> bool:
    """runconsumers logs the line that --check prints."""
    return ast.unparse(call.args[0]).startswith("self._plan(")


def events() -> dict[str, set[str]]:
    """Every event in the code, with the levels at which it is logged."""
    found: dict[str, set[str]] = {"starting": {"info"}}
    for _, call in logging_calls():
        for said in lines_of(call):
            assert isinstance(call.func, ast.Attribute)
            found.setdefault(ast.literal_eval(said.args[0]), set()).add(call.func.attr)
    for node in ast.walk(ast.parse(Path(logs.__file__).read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "_line":
            write, event = node.args
            found.setdefault(ast.literal_eval(event), set()).add(ast.unparse(write).removeprefix("logger."))
    return found


def test_every_log_call_writes_a_logfmt() -> None:
    calls = list(logging_calls())
    assert len(calls) > 20
    others = [f"{file.name}: {ast.unparse(call)}" for file, call in calls if not lines_of(call) and not is_plan(call)]
    assert not others
    # A line's values may have a % in them, so it is the whole message, or an argument of one.
    mixed = [
        ast.unparse(call) for _, call in calls if lines_of(call) and call.args[0] in lines_of(call) and call.args[1:]
    ]
    assert not mixed


def test_every_event_is_in_the_documents_with_its_level() -> None:
    told = {
        event: set(row["levels"].split(", "))
        for row in ROW.finditer(DOCUMENT.read_text())
        for event in re.findall(r"\w+", row["events"])
    }
    assert told == events()


def test_nothing_secret_is_named_in_a_log_call() -> None:
    secrets = {"payload", "headers", "password", "PASSWORD", "settings_dict", "DATABASES", "environ"}
    found = {
        (str(file.relative_to(ROOT)), name)
        for file, call in logging_calls()
        for node in ast.walk(call)
        for name in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "arg", "") or "")
        if name in secrets
    }
    assert not found


class TestTracebacks:
    EVIL = "bad\nevent=dead_lettered group=billing\r\x1b]0;owned\x07\u2028event=forged"

    def test_no_line_of_an_errors_traceback_can_be_taken_for_a_log_line(self) -> None:
        """Whatever formatter the project has; the error itself stays in the record, for what collects errors."""
        out, records = io.StringIO(), []
        handlers = [logging.StreamHandler(out), Collecting(records)]
        for handler in handlers:
            logger.addHandler(handler)
        try:
            try:
                raise ValueError(self.EVIL)
            except ValueError as error:
                logger.error(logfmt("receiver_failed", error=error), exc_info=error)
        finally:
            for handler in handlers:
                logger.removeHandler(handler)
        first, *others = out.getvalue().splitlines()
        assert first.startswith("event=receiver_failed ")
        assert len(others) >= 4
        assert all(line.startswith("  ") for line in others)
        assert "".join([first, *others]).isprintable()
        assert [type(record.exc_info[1]) for record in records if record.exc_info] == [ValueError]

    def test_as_json_it_is_one_line(self) -> None:
        try:
            raise ValueError(self.EVIL)
        except ValueError:
            record = logger.makeRecord("sqlqueue", logging.ERROR, "", 0, "event=x", (), sys.exc_info())
        (line,) = JSONLines().format(record).splitlines()
        assert json.loads(line)["exception"].endswith(self.EVIL)

    def test_nor_can_one_that_is_text(self) -> None:
        assert lines_below(f"Traceback:\n{self.EVIL}\n").splitlines()[1:] == [
            "  bad",
            "  event=dead_lettered group=billing\\r\\u001b]0;owned\\u0007\\u2028event=forged",
        ]


class Collecting(logging.Handler):
    """Keeps the records."""

    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self._records = records

    def emit(self, record: logging.LogRecord) -> None:
        self._records.append(record)
