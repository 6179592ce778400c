"""What the package's sources ask to be translated, found without gettext's tools."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

from babel.messages.extract import extract_python
from django.utils.translation.template import templatize

PACKAGE = Path(__file__).resolve().parents[2] / "sqlqueue"
KEYWORDS = {
    "_": None,
    "gettext": None,
    "gettext_lazy": None,
    "gettext_noop": None,
    "ngettext": (1, 2),
    "ngettext_lazy": (1, 2),
}

Asked = str | tuple[str, str]  # a plural has two


def asked() -> Iterator[tuple[Asked, str]]:
    """Yield every string that is to be translated, and the file that it stands in."""
    for file in sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.html")]):
        text = file.read_text()
        if file.suffix == ".html":
            text = "\n".join(line.lstrip() for line in templatize(text).splitlines())
        for _line, function, found, _comments in extract_python(io.BytesIO(text.encode()), KEYWORDS, (), {}):
            if function in KEYWORDS:
                yield _message(function, found), str(file.relative_to(PACKAGE))


def _message(function: str, found: object) -> Asked:
    if function.startswith("ngettext"):
        assert isinstance(found, tuple)
        return str(found[0]), str(found[1])
    return str(found[0] if isinstance(found, tuple) else found)
