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


def parts() -> list[Path]:
    """Return the folders that have a translation of their own: the package, and apps of contrib."""
    return sorted({folder.parent for folder in PACKAGE.rglob("locale")})


def asked(part: Path) -> Iterator[tuple[Asked, str]]:
    """Yield every string of a part that is to be translated, and the file that it stands in."""
    within = [other for other in parts() if other != part and part in other.parents]
    for file in sorted([*part.rglob("*.py"), *part.rglob("*.html")]):
        if any(other in file.parents for other in within):
            continue
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
