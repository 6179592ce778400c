"""Running the queue's commands in the test's own process: what they print, and how they end."""

import io
import sys
from typing import NamedTuple
from unittest.mock import patch

from django.core.management import CommandError, call_command


class Said(NamedTuple):
    """How a command ended, and what it printed; a refusal's text is in `err`."""

    code: int
    out: str
    err: str


def run(name: str, *arguments: object, stdin: str = "") -> Said:
    """Run a command as its arguments on a command line say."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with patch.object(sys, "stdin", io.StringIO(stdin)):
        try:
            call_command(name, *map(str, arguments), stdout=out, stderr=err)
        except CommandError as error:
            code = error.returncode
            err.write(str(error))
        except SystemExit as error:
            code = int(error.code or 0)
    return Said(code, out.getvalue(), err.getvalue())
