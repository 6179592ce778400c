"""The glossary can be looked up in, is short, and says what it promises: one sentence a term."""

import re

import pytest

from tests.documents import ROOT

pytestmark = pytest.mark.once


def sections() -> list[list[list[str]]]:
    """Return the rows of each table: term, meaning, elsewhere."""
    parts = (ROOT / "docs/glossary.md").read_text().split("\n## ")
    return [
        [re.split(r" \| ", line.strip("| ")) for line in part.splitlines() if re.match(r"\| (?!---|term)", line)]
        for part in parts
    ]


def test_terms_are_in_alphabetical_order_and_stand_there_once() -> None:
    for rows in sections():
        terms = [row[0].lower().replace("-", " ") for row in rows]
        assert terms == sorted(terms)
    everything = [row[0] for rows in sections() for row in rows]
    assert len(everything) == len(set(everything)) <= 140


def test_each_term_has_one_sentence_and_says_what_it_is_elsewhere() -> None:
    wrong = [
        row
        for rows in sections()
        for row in rows
        if len(row) != 3 or not re.fullmatch(r"[^.]*(?:\.\w[^.]*)*\.", row[1])
    ]
    assert not wrong
