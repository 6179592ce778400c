"""Asking a port of a process over HTTP."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any, NamedTuple

from tests.processes import ManageCommand


class Answered(NamedTuple):
    """The answer of a port; status 0: no answer, or an incomplete one."""

    status: int
    text: str
    headers: dict[str, str]

    @property
    def body(self) -> Any:
        return json.loads(self.text)


def ask(port: int, path: str, token: str = "", method: str = "GET") -> Answered:
    """Return what this machine answers on that port, whatever its status."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return Answered(answer.status, answer.read().decode(), dict(answer.headers))
    except urllib.error.HTTPError as error:
        return Answered(error.code, error.read().decode(), dict(error.headers))
    except (OSError, http.client.HTTPException) as error:
        return Answered(0, repr(error), {})


def port_of(command: ManageCommand, purpose: str) -> int:
    """Return the port that a process has opened for this purpose."""
    return int(command.wait_for_line(rf"event=listening purpose={purpose} address=127\.0\.0\.1 port=(\d+)")[1])
