"""The German translation is whole: nothing is missing, left over, fuzzy or out of date."""

import gettext
import re
from pathlib import Path

import pytest
from babel.messages.pofile import read_po
from django.test import Client
from django.utils import translation
from django.utils.translation import ngettext

from tests.admin.test_overview import page
from tests.locale.catalog import asked, parts

pytestmark = pytest.mark.once

PLACE = re.compile(r"%(?:\((\w+)\))?[a-z]")


@pytest.fixture(params=parts(), ids=lambda part: part.name)
def part(request: pytest.FixtureRequest) -> Path:
    """A folder that has a translation of its own."""
    folder: Path = request.param
    return folder


def messages_of(part: Path, suffix: str) -> Path:
    return part / "locale" / "de" / "LC_MESSAGES" / f"django.{suffix}"


@pytest.fixture
def catalog(part: Path) -> dict[object, object]:
    """The translations by what they translate."""
    with messages_of(part, "po").open("rb") as file:
        read = read_po(file, locale="de")
    assert not [message.id for message in read if message.id and message.fuzzy]
    return {message.id: message.string for message in read if message.id}


def test_every_string_is_translated(part: Path, catalog: dict[object, object]) -> None:
    wanted = dict(asked(part))
    assert len(wanted) > 20
    missing = {message: file for message, file in wanted.items() if not catalog.get(message)}
    assert not missing
    assert all(all(catalog[message]) for message in wanted if isinstance(message, tuple))


def test_nothing_is_left_over(part: Path, catalog: dict[object, object]) -> None:
    assert not set(catalog) - {message for message, _ in asked(part)}


def test_what_is_put_into_a_string_is_in_its_translation(catalog: dict[object, object]) -> None:
    for message, translated in catalog.items():
        before = message if isinstance(message, tuple) else (message,)
        after = translated if isinstance(translated, tuple) else (translated,)
        assert len(after) == len(before)
        for one, other in zip(before, after):
            assert sorted(PLACE.findall(one)) == sorted(PLACE.findall(other)), one


def test_the_compiled_file_is_of_this_text(part: Path, catalog: dict[object, object]) -> None:
    with messages_of(part, "mo").open("rb") as file:
        compiled = gettext.GNUTranslations(file)
    for message, translated in catalog.items():
        if isinstance(message, tuple):
            assert tuple(compiled.ngettext(*message, n) for n in (1, 2)) == translated
        else:
            assert compiled.gettext(message) == translated


@pytest.mark.django_db
def test_the_admin_speaks_german(admin_client: Client) -> None:
    with translation.override("de"):
        assert ngettext("%(count)s partition", "%(count)s partitions", 2) == "%(count)s Partitionen"
        html = page(admin_client)
    assert "Überblick über die Warteschlange" in html
