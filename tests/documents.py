"""Reads the code blocks of a Markdown document and holds them against the truth; MARKS says how to mark one."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.forking import INHERITED, fork_server, write_stand_in

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+) *(?P<language>[\w+-]*)(?P<rest>[^`]*)$")
COMMENT = re.compile(r"^\s*<!-- *(?P<mark>file:|append:|run|shown|spark)(?P<argument>.*?) *-->\s*$")
SHELLS = ("console", "bash", "sh")
COMPILED = ("python",)
UNMARKED = (*COMPILED, *SHELLS, "sql", "text", "ini", "toml")
COMMAND_TIMEOUT = 120
COMMANDS = ".commands"  # the project's folder that is first in the path
MARKS = """\
Write one of these on a line of its own before the block:
  <!-- file: shop/consumers.py -->    the block is written to that file of a temporary Django project
  <!-- append: mysite/settings.py --> the block is added to that file
  <!-- run -->                        a console block: each command is run in that project and must exit 0
  <!-- shown -->                      the block is only looked at
  <!-- spark -->                      Python that tests/contrib/spark runs, in order, with a session `spark`
The project is what `django-admin startproject mysite .` makes. Blocks are taken in the document's order.
Without a mark: Python must compile, `make` in a console block must name a target, sql, text, ini and toml pass."""


class DocumentError(AssertionError):
    """A block of a document is not true, or says too little; the message names it and what to do."""


@dataclass(frozen=True)
class Block:
    """One fenced block, with the mark before it."""

    document: Path
    line: int
    language: str
    text: str
    mark: str = ""
    argument: str = ""

    def __str__(self) -> str:
        return f"{self.document.name}, line {self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a console block: the lines after `$ ` where there are any, else all but comments."""
        lines = self.text.replace("\\\n", " ").splitlines()
        prompted = [line.lstrip()[2:] for line in lines if line.lstrip().startswith("$ ")]
        return prompted or [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def blocks(document: Path) -> Iterator[Block]:
    """Yield the document's fenced blocks in order."""
    mark, opening, start, lines = ("", ""), None, 0, []
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if opening is not None:
            if line.strip() == opening["fence"]:
                text = "\n".join(text.removeprefix(opening["indent"]) for text in lines) + "\n"
                yield Block(document, start, opening["language"], text, *mark)
                mark, opening = ("", ""), None
            else:
                lines.append(line)
        elif match := FENCE.match(line):
            opening, start, lines = match, number, []
        elif match := COMMENT.match(line):
            mark = (match["mark"].rstrip(":"), match["argument"].strip())
        elif line.strip():
            mark = ("", "")
    if opening is not None:
        raise DocumentError(f"{document.name}, line {start}: the block is never closed.")


@dataclass
class Rehearsal:
    """Takes a document's blocks one after another in a temporary Django project."""

    folder: Path
    taken: list[str] = field(default_factory=list)
    printed: list[str] = field(default_factory=list)  # by each command that has run

    def __post_init__(self) -> None:
        write_stand_in(self.folder / COMMANDS)

    def take_all(self, document: Path) -> None:
        for block in blocks(document):
            self.take(block)
            self.taken.append(str(block))

    def take(self, block: Block) -> None:
        """Do with the block what its mark and its language say; raise DocumentError when it is not true."""
        if block.mark in ("file", "append"):
            self.write(block)
        elif block.mark == "run":
            if block.language not in SHELLS:
                raise DocumentError(f"{block}: only {', '.join(SHELLS)} blocks can be run.")
            self.run(block)
        elif block.mark != "shown":
            self.look_at(block)

    def look_at(self, block: Block) -> None:
        if block.language not in UNMARKED:
            raise DocumentError(f"{block}: a block of language {block.language!r} needs a mark.\n{MARKS}")
        if block.language in COMPILED:
            compile_python(block)
        if block.language in SHELLS:
            check_make_targets(block)

    def write(self, block: Block) -> None:
        self.start_project()
        target = (self.folder / block.argument).resolve()
        if not block.argument or not target.is_relative_to(self.folder.resolve()):
            raise DocumentError(f"{block}: {block.argument!r} is not a file in the project.\n{MARKS}")
        if target.suffix == ".py":
            compile_python(block)
        self.make_packages(target)
        with target.open("a" if block.mark == "append" else "w") as file:
            file.write(block.text)

    def make_packages(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        parents = [folder for folder in target.parents if folder != self.folder.resolve()]
        for folder in parents:
            if target.suffix == ".py" and folder.is_relative_to(self.folder.resolve()):
                (folder / "__init__.py").touch()

    def run(self, block: Block) -> None:
        self.start_project()
        for command in block.commands:
            self.execute(["bash", "-euo", "pipefail", "-c", command], f"{block}: {command}")

    def start_project(self) -> None:
        if not (self.folder / "manage.py").exists():
            self.execute(["python", "-m", "django", "startproject", "mysite", "."], "startproject")

    def execute(self, command: list[str], said: str) -> None:
        inherited = ("HOME", "LANG", "TMPDIR")
        environment = {name: os.environ[name] for name in inherited if name in os.environ}
        folders = [str(self.folder / COMMANDS), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
        server = fork_server().fileno()
        environment |= {"PATH": os.pathsep.join(folders), "PYTHONPATH": str(ROOT), INHERITED: str(server)}
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            pass_fds=[server],
        ) as process:
            try:
                output, _ = process.communicate(timeout=COMMAND_TIMEOUT)
            except subprocess.TimeoutExpired as error:
                raise DocumentError(f"{said}\ndoes not end within {COMMAND_TIMEOUT} s:\n{error.output}") from error
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what the command left running
        self.printed.append(output)
        if process.returncode:
            raise DocumentError(f"{said}\nends with {process.returncode}:\n{output}")


def compile_python(block: Block) -> None:
    try:
        compile(block.text, str(block), "exec")
    except SyntaxError as error:
        raise DocumentError(f"{block}: not Python: {error}") from error


def check_make_targets(block: Block) -> None:
    """Raise DocumentError when a command calls `make` with a target that the Makefile does not have."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for command in block.commands:
        words = shlex.split(command, comments=True)
        for name in words[words.index("make") + 1 :] if "make" in words else []:
            if "=" not in name and not name.startswith("-") and name not in targets:
                raise DocumentError(f"{block}: the Makefile has no target {name!r}.")
