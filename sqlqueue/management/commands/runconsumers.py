"""Running the registered consumers (`runconsumers`)."""

from __future__ import annotations

import os
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import ERROR, run_checks
from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections
from django.utils import autoreload

from sqlqueue.checks import TAG
from sqlqueue.checks.databases import POOL, pool_problems, replica_sessions
from sqlqueue.conf import settings
from sqlqueue.consumers.background.task import BackgroundTask
from sqlqueue.consumers.declare.registry import Consumer, registry
from sqlqueue.consumers.process.endpoints import Address, Endpoints
from sqlqueue.consumers.process.liveness import Liveness
from sqlqueue.consumers.process.signals import let_sigterm_end_pid_1
from sqlqueue.consumers.process.supervisor import Supervisor
from sqlqueue.consumers.process.worker import WorkerOptions, serve, wait_for_database
from sqlqueue.core.bounds import whole
from sqlqueue.core.keys import did_you_mean
from sqlqueue.core.logfmt import logfmt
from sqlqueue.core.settings import MOST_THREADS
from sqlqueue.database.log import Log, all_logs, home_log
from sqlqueue.database.server_checks import describe
from sqlqueue.database.tables import pending_migrations
from sqlqueue.database.write_probe import write_refused
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases.heartbeat import subscriber_name
from sqlqueue.log.topic_options import all_differences, apply_settings, told
from sqlqueue.management.arguments import MOST_PROCESSES, refuse_broken_texts
from sqlqueue.monitoring import logs
from sqlqueue.monitoring.http_server import refusal

PURPOSES = ("health", "metrics")
ANSWER_TIMEOUT = 5.0  # seconds that one of several databases has to answer, or READ_ALIAS: a hang holds up nothing else
APPLY_INTERVAL = 1.0  # seconds between two tries to apply settings


class SettingsTask(BackgroundTask):
    """Applies the settings to topics that were locked, or whose database was away, when the command started; ends when
    all topics have them."""

    def __init__(self, log: Log):
        super().__init__(log, "settings", APPLY_INTERVAL)

    def run_once(self) -> bool:
        """Apply the settings to the topics that are left."""
        self._stopping = not apply_settings(self.log) or self._stopping
        return False


class Command(BaseCommand):
    """Validates all options together, logs what it will run, and starts the supervisor."""

    help = "Deliver messages to the registered consumers until stopped (SIGTERM or SIGINT; twice: at once)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the command's options."""
        parser.add_argument("--group", action="append", default=[], help="only this consumer group (repeatable)")
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable)")
        parser.add_argument(
            "--database",
            action="append",
            default=[],
            metavar="ALIAS",
            help="only the log on this database (repeatable)",
        )
        parser.add_argument(
            "--processes",
            type=int,
            default=1,
            help="consumer processes, of each database (default 1; 0: no supervisor)",
        )
        parser.add_argument("--threads", type=int, help="handler threads of each process (default SQLQUEUE['THREADS'])")
        parser.add_argument(
            "--health-port", type=int, metavar="PORT", help="answer /health/live, /health/ready and more"
        )
        parser.add_argument("--health-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
        parser.add_argument("--metrics-port", type=int, metavar="PORT", help="answer /metrics, for Prometheus")
        parser.add_argument("--metrics-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
        parser.add_argument("--drain", action="store_true", help="exit when everything due now is settled")
        parser.add_argument("--check", action="store_true", help="validate all options and the database; start nothing")
        parser.add_argument("--noreload", action="store_true", help="do not restart on code changes when DEBUG is on")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run consumers, or with --check only validate. Raises CommandError."""
        let_sigterm_end_pid_1(int(options["check"] or options["drain"]))
        refuse_broken_texts(options)
        logs.show(options["verbosity"])
        if not (options["check"] or options["drain"] or settings.problems() or settings.several):
            wait_for_database(home_log())
        reload = (
            django_settings.DEBUG
            and options["processes"] > 0
            and not (options["noreload"] or options["drain"] or options["check"])
        )
        if reload and os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
            autoreload.run_with_reloader(self._run_until_changed, options)
            return
        consumers = self._validate(options)
        if options["check"]:
            self.stdout.write(self._plan(consumers, options))
            for log in self._answering:
                for one in all_differences(log):
                    text = "overridden, so it stays" if one.overridden else f"{told(one.wanted)} once consumers start"
                    there = f" on database {log.label!r}" if settings.several else ""
                    self.stdout.write(f"{one.option} of topic {one.topic!r}{there}: {told(one.stored)}, {text}")
            self.stdout.write(self.style.SUCCESS("All is well."))
        elif reload:
            autoreload.run_with_reloader(self._run_until_changed, options)  # which starts such processes
        else:
            self._run(consumers, options)

    def _run_until_changed(self, options: dict[str, Any]) -> None:
        """Run in a process of the reloader. Code or options that cannot start wait for the next change, as those of
        `runserver` do: a file may have been saved half-way."""
        autoreload.check_errors(registry.discover)()  # so that a file that cannot be imported is watched
        try:
            self._run(self._validate(options), options)
        except CommandError as error:
            self.stderr.write(self.style.ERROR(f"{error}\nThis is tried again once a file changes."))

    def _run(self, consumers: list[Consumer], options: dict[str, Any]) -> None:
        worker_options = WorkerOptions(
            tuple(options["group"]),
            tuple(options["topic"]),
            options["threads"],
            options["drain"],
            options["verbosity"],
        )
        logs.logger.info(self._plan(consumers, options))
        # A database that does not answer has its settings applied once it does.
        late = [SettingsTask(each) for each in self._logs if each not in self._answering or apply_settings(each)]
        connections.close_all()
        ports = Endpoints(_address(options, "health"), _address(options, "metrics"))
        for task in late:
            task.start()
        served: Sequence[Log | None] = self._logs if settings.several else (None,)
        try:
            if options["processes"] == 0:
                serve(replace(worker_options, log=served[0]), subscriber_name(), None, Liveness(), ports)
                return
            status = Supervisor(worker_options, options["processes"], ports, served).run()
        except ConfigurationError as error:
            raise CommandError(f"runconsumers cannot continue: {error}") from error
        except RuntimeError as error:
            if "__mp_main__" not in sys.modules:  # the name that multiprocessing gives a main module it imports again
                raise
            raise CommandError(
                f"runconsumers has started this process, which imports its main module {sys.argv[0]}, and that runs "
                'the command once more: put its call of Django\'s under `if __name__ == "__main__":`'
            ) from error
        if status:
            sys.exit(status)

    def _validate(self, options: dict[str, Any]) -> list[Consumer]:
        """Check options, settings, handlers and database together, before the first thread starts."""
        problems: list[str] = []
        for name, least, most in (("processes", 0, MOST_PROCESSES), ("threads", 1, MOST_THREADS)):
            if options[name] is not None:
                whole(options[name], f"--{name}", problems, most, least)
        problems += self._ports(options)
        self._logs: tuple[Log, ...] = ()
        self._answering: list[Log] = []
        if not settings.problems():
            problems += self._choose_databases(options)
        found = run_checks(tags=[TAG], databases=[log.alias for log in self._answering or self._logs[:1]])
        if options["threads"] and not settings.problems():  # not THREADS, which the check goes by
            found = [message for message in found if message.id != POOL] + [*pool_problems(options["threads"])]
        if not any(message.level >= ERROR for message in found):
            found += replica_sessions(ANSWER_TIMEOUT)
        for message in found:
            if message.level >= ERROR:
                problems.append(f"{message.msg} ({message.id})" + (f": {message.hint}" if message.hint else ""))
            elif options["verbosity"]:
                self.stderr.write(self.style.WARNING(f"{message.msg} ({message.id}): {message.hint}"))
        consumers: list[Consumer] = []
        if not problems:
            for log in self._answering:
                if pending_migrations(log):
                    where = "" if log.alias == DEFAULT_DB_ALIAS else f" --database {log.alias}"
                    text = f"the queue's tables are not up to date: run `python manage.py migrate sqlqueue{where}`"
                    problems.append(text)
            try:
                consumers = registry.select(options["group"], options["topic"])
            except ConfigurationError as error:
                problems.append(str(error))
            if not problems and not consumers:
                problems.append(
                    f"no handlers: no app has a {settings.CONSUMERS_MODULE}.py with a @consumer for what was asked"
                )
        if problems:
            raise CommandError("runconsumers cannot start:\n- " + "\n- ".join(problems))
        return consumers

    def _choose_databases(self, options: dict[str, Any]) -> list[str]:
        """Note the databases that are to be served, and which of them answer; return what is wrong with --database."""
        if unknown := [name for name in options["database"] if name not in settings.aliases]:
            hint = did_you_mean(unknown[0], settings.aliases)
            return [f"--database {unknown[0]}: neither DATABASE nor a topic's 'databases' name it.{hint}"]
        self._logs = tuple(Log.of(alias) for alias in dict.fromkeys(options["database"])) or all_logs()
        if options["processes"] == 0 and len(self._logs) > 1:
            return ["--processes 0 serves one database, in this process: say which with --database"]
        self._answering = [log for log in self._logs if len(self._logs) == 1 or self._answers(log)]
        return []

    def _answers(self, log: Log) -> bool:
        """Tell whether a database answers and takes writes: the others are served all the same, and it is once it
        does."""
        problem = [f"does not answer, and is served once it does: not within {ANSWER_TIMEOUT:g} seconds"]

        def connect() -> None:
            try:
                log.connection.ensure_connection()
                refused = write_refused(log)
                problem[:] = [f"takes no writes, and is served once it does: {refused}"] if refused else []
            except DatabaseError as error:
                problem[:] = [f"does not answer, and is served once it does: {error}"]
            finally:
                log.connection.close()

        asking = threading.Thread(target=connect, daemon=True)
        asking.start()
        asking.join(ANSWER_TIMEOUT)
        if problem:
            self.stderr.write(self.style.WARNING(f"database {log.label!r} {problem[0]}"))
        return not problem

    def _ports(self, options: dict[str, Any]) -> list[str]:
        """Return what is wrong with the ports, one text for each problem."""
        addresses = {purpose: at for purpose in PURPOSES if (at := _address(options, purpose)) is not None}
        problems = [refused for purpose, at in addresses.items() if (refused := refusal(purpose, *at))]
        if "metrics" in addresses and find_spec("prometheus_client") is None:
            problems.append("--metrics-port needs prometheus-client: pip install sqlqueue[prometheus]")
        if options["metrics_port"] and options["metrics_port"] == options["health_port"]:
            problems.append("--health-port and --metrics-port must be different")
        return problems

    def _plan(self, consumers: list[Consumer], options: dict[str, Any]) -> str:
        """Return the log line that says what will run."""
        handlers = ", ".join(
            f"{c.group}/{c.topic}→{c.name} (ordering={c.options.ordering}"
            f"{' batch=' + str(c.options.batch_size) if c.options.batch else ''}{' atomic' if c.options.atomic else ''}"
            f"{' commit_every=' + str(c.options.commit_every) if c.options.grouped else ''}"
            f"{' where(' + c.options.where.text + ')' if c.options.where else ''}"
            f"{''.join(f' {name}={value}' for name, value in c.flow.as_dict().items())}"
            f" attempts={c.options.max_attempts or 'unlimited'} timeout={c.options.visibility_timeout:g}s)"
            for c in consumers
        )
        return logfmt(
            "starting",
            processes=options["processes"],
            threads=options["threads"] or settings.THREADS,
            drain=options["drain"],
            database=", ".join(f"{log.alias}: {describe(log)}" for log in self._answering),
            lease=settings.LEASE_DURATION,
            handlers=handlers,
        )


def _address(options: dict[str, Any], purpose: str) -> Address | None:
    """Return the address and port of --health-port and the like; None if it was not given."""
    port = options[f"{purpose}_port"]
    return None if port is None else (options[f"{purpose}_address"], port)
