"""Host the registered consumers."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib.util import find_spec
from typing import Any

from django.conf import settings as django_settings
from django.core.checks import ERROR, run_checks
from django.core.management.base import BaseCommand, CommandError
from django.db import connections
from django.utils import autoreload

from sqlqueue.checks import TAG
from sqlqueue.conf import MOST_THREADS, settings
from sqlqueue.consumers.ports import Place, Ports
from sqlqueue.consumers.process import Orders, serve
from sqlqueue.consumers.pulse import Pulse
from sqlqueue.consumers.registry import Consumer, registry
from sqlqueue.consumers.supervisor import Supervisor
from sqlqueue.core.bounds import whole
from sqlqueue.core.lines import line
from sqlqueue.database.server import describe
from sqlqueue.database.tables import pending_migrations
from sqlqueue.exceptions import ConfigurationError
from sqlqueue.leases.heartbeat import subscriber_name
from sqlqueue.management.arguments import MOST_PROCESSES
from sqlqueue.observe import logs
from sqlqueue.observe.window import refusal

PURPOSES = ("health", "metrics")


class Command(BaseCommand):
    """Parses, validates everything together, tells what it will do, and hands over to the supervisor."""

    help = "Deliver messages to the registered consumers until stopped (SIGTERM or SIGINT; twice: at once)."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument("--group", action="append", default=[], help="only this consumer group (repeatable)")
        parser.add_argument("--topic", action="append", default=[], help="only this topic (repeatable)")
        parser.add_argument("--processes", type=int, default=1, help="consumer processes (default 1; 0: no supervisor)")
        parser.add_argument("--threads", type=int, help="handler threads of each process (default SQLQUEUE['THREADS'])")
        parser.add_argument(
            "--health-port", type=int, metavar="PORT", help="answer /health/live, /health/ready and more"
        )
        parser.add_argument("--health-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
        parser.add_argument("--metrics-port", type=int, metavar="PORT", help="answer /metrics, for Prometheus")
        parser.add_argument("--metrics-address", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1")
        parser.add_argument("--drain", action="store_true", help="leave when everything due now has been settled")
        parser.add_argument("--check", action="store_true", help="validate all options and the database; start nothing")
        parser.add_argument("--noreload", action="store_true", help="do not restart on code changes when DEBUG is on")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run."""
        consumers = self._validate(options)
        logs.show(options["verbosity"])
        if options["check"]:
            self.stdout.write(self._plan(consumers, options))
            self.stdout.write(self.style.SUCCESS("All is well."))
            return
        reload = django_settings.DEBUG and not options["noreload"] and not options["drain"] and options["processes"] > 0
        if reload:
            autoreload.run_with_reloader(self._run, consumers, options)
        else:
            self._run(consumers, options)

    def _run(self, consumers: list[Consumer], options: dict[str, Any]) -> None:
        autoreload.raise_last_exception()
        orders = Orders(
            tuple(options["group"]),
            tuple(options["topic"]),
            options["threads"],
            options["drain"],
            options["verbosity"],
        )
        logs.logger.info(self._plan(consumers, options))
        connections.close_all()
        ports = Ports(_place(options, "health"), _place(options, "metrics"))
        try:
            if options["processes"] == 0:
                serve(orders, subscriber_name(), None, Pulse(), ports)
                return
            status = Supervisor(orders, options["processes"], ports).run()
        except ConfigurationError as error:
            raise CommandError(f"runconsumers cannot go on: {error}") from error
        except RuntimeError as error:
            if "__mp_main__" not in sys.modules:  # so multiprocessing calls a main module that it imports once more
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
                whole(options[name], f"--{name}", most, problems, least)
        problems += self._ports(options)
        found = run_checks(tags=[TAG], databases=[settings.DATABASE] if not settings.problems() else None)
        for message in found:
            if message.level >= ERROR:
                problems.append(f"{message.msg} ({message.id})" + (f": {message.hint}" if message.hint else ""))
            elif options["verbosity"]:
                self.stderr.write(self.style.WARNING(f"{message.msg} ({message.id}): {message.hint}"))
        consumers: list[Consumer] = []
        if not problems:
            if pending_migrations(settings.DATABASE):
                problems.append("the queue's tables are not up to date: run `python manage.py migrate sqlqueue`")
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

    def _ports(self, options: dict[str, Any]) -> list[str]:
        """Return what is wrong with the ports that are to be opened."""
        places = {purpose: place for purpose in PURPOSES if (place := _place(options, purpose)) is not None}
        problems = [refused for purpose, place in places.items() if (refused := refusal(purpose, *place))]
        if "metrics" in places and find_spec("prometheus_client") is None:
            problems.append("--metrics-port needs prometheus-client: pip install sqlqueue[prometheus]")
        if options["metrics_port"] and options["metrics_port"] == options["health_port"]:
            problems.append("--health-port and --metrics-port must be two ports")
        return problems

    def _plan(self, consumers: list[Consumer], options: dict[str, Any]) -> str:
        """Return one line that tells everything it will do."""
        handlers = ", ".join(
            f"{c.group}/{c.topic}→{c.name} (ordering={c.manners.ordering}"
            f"{' batch=' + str(c.manners.batch_size) if c.manners.batch else ''}{' atomic' if c.manners.atomic else ''}"
            f" attempts={c.manners.max_attempts} timeout={c.manners.visibility_timeout:g}s)"
            for c in consumers
        )
        return line(
            "starting",
            processes=options["processes"],
            threads=options["threads"] or settings.THREADS,
            drain=options["drain"],
            database=f"{settings.DATABASE}: {describe(settings.DATABASE)}",
            lease=settings.LEASE_DURATION,
            handlers=handlers,
        )


def _place(options: dict[str, Any], purpose: str) -> Place | None:
    """Return the address and port of --health-port and the like; None if it was not given."""
    port = options[f"{purpose}_port"]
    return None if port is None else (options[f"{purpose}_address"], port)
