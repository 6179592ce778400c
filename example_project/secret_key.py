"""The secret key of a checkout: created once, and kept in a file that only its owner may read."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def checkout_secret_key(path: Path) -> str:
    """Return the key in the file at `path`, which is created if it does not exist.

    A site in production sets SECRET_KEY in its environment instead.
    """
    if not path.exists():
        # Written whole under another name and then linked, so that two processes that start together agree on one key.
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(50))
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path.read_text()
