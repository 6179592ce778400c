"""`manage.py queuestatus`: tables, JSON, and watching."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

from sqlqueue import Delivery, Retry, publish
from sqlqueue.log.groups import register
from sqlqueue.log.pause import pause
from tests.consuming import Consuming
from tests.management.running import run
from tests.processes import ROOT, ManageCommands, database_url, environment, wait_until


def test_an_empty_queue(consuming: Consuming) -> None:
    said = run("queuestatus")
    assert said.code == 0
    assert "There are no topics yet" in said.out


def test_how_groups_stand(consuming: Consuming) -> None:
    @consuming.consumer("orders", group="mail")
    def handle(delivery: Delivery) -> None:
        raise Retry(delay=3600)

    publish("orders", 1, key="a")
    consuming.drain()
    publish("orders", 2, key="b")
    publish("orders", 3, delay=3600)
    publish("other", 1)
    said = run("queuestatus", "--topic", "orders")
    assert re.search(r"^orders +mail +2 .* 1 +0 +0 +0\.0 +— +0 +away: holds back collection$", said.out, re.MULTILINE)
    assert re.search(r"^orders +4 +1 +7 d +1 +0 +0$", said.out, re.MULTILINE)
    assert "other" not in said.out
    told = json.loads(run("queuestatus", "--json", "--group", "mail").out)
    [group] = told["groups"]
    assert (group["group"], group["lag"], group["failing"], group["away"]) == ("mail", 2, 1, True)
    assert {topic["name"]: topic["scheduled"] for topic in told["topics"]} == {"orders": 1, "other": 0}


def test_what_is_paused(consuming: Consuming) -> None:
    register("default", "mail", "orders")
    pause("default", "orders", "mail")
    assert re.search(r"^orders +mail .* paused$", run("queuestatus").out, re.MULTILINE)


def test_a_wrong_pause_between_two_looks_is_refused(consuming: Consuming) -> None:
    said = run("queuestatus", "--watch", "0")
    assert (said.code, "is no number from 0.1 to 86,400" in said.err) == (1, True)


def test_watching_goes_on_until_it_is_interrupted(manage: ManageCommands) -> None:
    register("default", "mail", "orders")
    command = manage("queuestatus", "--watch", "0.1", "--json")
    wait_until(lambda: len(command.output.splitlines()) >= 3)
    publish("orders", 1)
    command.wait_for_line('"lag": 1,')
    command.interrupt()
    assert command.wait() == 0, command.output
    assert "Traceback" not in command.output
    assert all(json.loads(line)["groups"] for line in command.output.splitlines())


def test_on_a_terminal_it_is_drawn_over_and_over(transactional_db: None) -> None:
    register("default", "mail", "orders")
    ours, theirs = pty.openpty()
    command = [sys.executable, str(ROOT / "manage.py"), "queuestatus", "--watch", "0.1"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(COLUMNS="200"), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = b""
    deadline = time.monotonic() + 60
    try:
        while seen.count(b"\x1b[H\x1b[J") < 3 and time.monotonic() < deadline:
            if select.select([ours], [], [], 1)[0]:
                seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # Linux's way of saying that nobody is at the other end
                break
            if not more:
                break
            seen += more
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = seen.decode()
    assert text.count("\x1b[H\x1b[J") >= 3
    assert "mail" in text
    assert "Traceback" not in text


def test_a_database_that_does_not_answer_has_its_own_exit_code(manage: ManageCommands, database_name: str) -> None:
    away = "sqlite:////nowhere/at/all.sqlite3" if database_name == "sqlite" else _nobody_listens(database_url())
    for words in (["queuestatus"], ["queuetail", "orders"], ["queuepause", "orders"]):
        command = manage(*words, env={"DATABASE_URL": away})
        assert command.wait() == 4, command.output
        assert "does not answer" in command.output
        assert "Traceback" not in command.output
        assert "hunter2" not in command.output


def _nobody_listens(url: str) -> str:
    scheme = url.split("://")[0]
    return f"{scheme}://somebody:hunter2@127.0.0.1:9/queue"
