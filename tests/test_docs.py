"""What the documents show is true: their code blocks are written, compiled and run (tests/documents.py)."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, DocumentError, Rehearsal

pytestmark = pytest.mark.once

DOCUMENTS = sorted(
    [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")), *(ROOT / "docs").rglob("*.md")]
)


@pytest.mark.timeout(900)  # some documents start forty processes, one after another
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_blocks_of_a_document_are_true(document: Path, tmp_path: Path) -> None:
    Rehearsal(tmp_path).take_all(document)


def test_the_first_commands_of_the_readme_warn_of_nothing(tmp_path: Path) -> None:
    rehearsal = Rehearsal(tmp_path)
    rehearsal.take_all(ROOT / "README.md")
    printed = "".join(rehearsal.printed)
    assert "confirmed 7 customer-1" in printed
    assert "sqlqueue.W" not in printed
    assert "WARNING" not in printed


def rehearse(folder: Path, text: str) -> Rehearsal:
    document = folder / "sample.md"
    document.write_text(text)
    project = folder / "project"
    project.mkdir()
    rehearsal = Rehearsal(project)
    rehearsal.take_all(document)
    return rehearsal


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))
def test_the_links_of_a_document_lead_somewhere(document: Path) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()) if "://" not in target]
    missing = [target for target in targets if not (document.parent / target).exists()]
    assert not missing


def test_marked_blocks_make_a_project_and_run_in_it(tmp_path: Path) -> None:
    rehearsal = rehearse(
        tmp_path,
        """
<!-- append: mysite/settings.py -->
```python
INSTALLED_APPS += ["shop"]
```

Then a command:

<!-- file: shop/management/commands/greet.py -->
```python
from django.core.management import BaseCommand

class Command(BaseCommand):
    def handle(self, **options):
        open("greeted", "w").close()
```

<!-- run -->
```console
$ python manage.py greet
some output
$ test -e \\
    greeted
```
""",
    )
    assert len(rehearsal.taken) == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nimport import\n```", "line 1: not Python"),
        ("```yaml\na: 1\n```", "needs a mark"),
        ("```\nwhat is this\n```", "needs a mark"),
        ("<!-- shown -->\n\nwords between\n\n```yaml\na: 1\n```", "line 5: .*needs a mark"),
        ("<!-- run -->\n```console\n$ false | true\n```", "ends with 1"),
        ("<!-- run -->\n```python\npass\n```", "can be run"),
        ("<!-- file: ../elsewhere.py -->\n```python\npass\n```", "not a file in the project"),
        ("```console\n$ FLIGHTS=1 make nothing\n```", "no target 'nothing'"),
        ("```console\n$ make demo\n", "never closed"),
    ],
)
def test_a_block_that_is_not_true_is_told(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=said):
        rehearse(tmp_path, text)


def test_a_block_may_be_only_shown(tmp_path: Path) -> None:
    assert rehearse(tmp_path, "<!-- shown -->\n```yaml\na: 1\n```\n").taken == ["sample.md, line 2"]
