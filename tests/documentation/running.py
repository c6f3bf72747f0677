"""Runs the blocks of a page one after the other, as a reader would type them.

What a block is follows from its language and the words behind it:

* ``python`` runs in the page's namespace; with ``>>>`` it is a doctest.
* ``text output`` is what the Python block before it printed.
* ``console`` has commands behind ``$``, each followed by what it prints; ``...`` stands for what is left out.
* ``sh`` has commands alone, all of which succeed.
* ``json schema=NAME`` is a document that such a reader takes, ``toml`` is parsed.
* ``file=NAME`` puts a block in a file; a Python block that is a file is not run.

An HTML comment directly before a block, which readers do not see, says where it is not like that:

* ``<!-- not run: REASON -->``
* ``<!-- commands checked: REASON -->``: programs, subcommands and options exist, but are not run.
* ``<!-- run by PATH -->``: another test runs the block.
* ``<!-- every block: ... -->``: one of these for all that follows.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import runpy
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner

from tests.documentation.commands import check_command
from tests.documentation.data import check_data
from tests.documentation.markdown import ROOT, Block
from ucpformat.cli import main

_FLAGS = doctest.ELLIPSIS
_PROMPT = "$ "


class WrongBlockError(AssertionError):
    """A block that does not do what its page says."""


class Reader:
    """Somebody who types the blocks of one page in ``directory``, which has to be the current one."""

    def __init__(self, directory: Path, namespace: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self.namespace = {"__name__": "__main__"} if namespace is None else namespace
        self.printed = ""

    def run(self, block: Block) -> str:
        """Run ``block`` and return its text as it would have to be: the same, where the page is right."""
        try:
            return self._run(block)
        except Exception as problem:
            raise WrongBlockError(f"{block}: {problem}") from problem

    def _run(self, block: Block) -> str:
        if name := block.options.get("file"):
            (self.directory / name).write_text(block.text, encoding="utf-8")
        match block.language:
            case "python" if ">>> " in block.text:
                self._doctest(block)
            case "python" if "file" not in block.options:
                self._python(block)
            case "console":
                return "".join(self._shown(block))
            case "sh":
                for command in commands_of(block.text):
                    self._command(command)
            case "text":
                assert "output" in block.options, "text that nothing prints"
                return _updated(block.text, self.printed)
            case _ if "file" not in block.options or "schema" in block.options:
                check_data(block)
        return block.text

    def _python(self, block: Block) -> None:
        # As many empty lines before it that tracebacks name the lines of the page.
        code = compile("\n" * block.line + block.text, block.page, "exec")
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(code, self.namespace)
        self.printed = said.getvalue()

    def _doctest(self, block: Block) -> None:
        test = doctest.DocTestParser().get_doctest(block.text, self.namespace, str(block), None, block.line)
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=_FLAGS)
        runner.run(test, out=said.append, clear_globs=False)
        self.namespace.update(test.globs)  # which is a copy
        if runner.failures:
            raise WrongBlockError("".join(said))

    def _shown(self, block: Block) -> Iterator[str]:
        """The block with what its commands print now; where ``...`` stands for that, as it is."""
        for shown in re.split(r"^(?=\$ )", block.text, flags=re.MULTILINE):
            if not shown:
                continue
            lines = shown.splitlines(keepends=True)
            count = next(i for i, line in enumerate(lines, 1) if not line.endswith("\\\n"))
            said, expected = "".join(lines[:count]), "".join(lines[count:])
            assert said.startswith(_PROMPT), f"a console block begins with a command: {said}"
            fails = "error UCP-" in expected or "  # exit code " in said
            printed = self._command(said.removeprefix(_PROMPT), fails=fails)
            yield said + _updated(expected, printed)

    def _command(self, command: str, *, fails: bool = False) -> str:
        words = shlex.split(command, comments=True)
        match words:
            case ["ucp", *arguments]:
                result = CliRunner().invoke(main, arguments, catch_exceptions=False)
                code, said = result.exit_code, result.output
            case ["python", script, *arguments] if script.endswith(".py"):
                code, said = 0, run_script(script, arguments)
            case ["torchrun", *arguments]:
                job = [sys.executable, "-m", "torch.distributed.run", *arguments]
                done = subprocess.run(job, capture_output=True, text=True, check=False)
                code, said = done.returncode, done.stdout + done.stderr
            case ["make" | "pip", *_]:
                check_command(words)
                return ""
            case _:
                done = subprocess.run(["bash", "-ec", command], capture_output=True, text=True, check=False)
                code, said = done.returncode, done.stdout + done.stderr
        if (code != 0) != fails:
            raise WrongBlockError(f"`{command.strip()}` ended with {code}:\n{said}")
        return said


def run_script(script: str, arguments: list[str]) -> str:
    """What a script prints, in this process."""
    said = io.StringIO()
    with patch.object(sys, "argv", [script, *arguments]), contextlib.redirect_stdout(said):
        runpy.run_path(script, run_name="__main__")
    return said.getvalue()


def commands_of(text: str) -> list[str]:
    """The commands of a shell block, continued lines joined."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if shlex.split(line, comments=True)]


def _updated(expected: str, printed: str) -> str:
    """``expected`` where ``printed`` agrees with it, else ``printed``, with what its lines leave out left out still."""
    if _same(expected, printed):
        return expected
    shortened = [line for line in expected.splitlines(keepends=True) if "..." in line and line != "...\n"]
    return "".join(
        next((short for short in shortened if _same(short, line)), line)
        for line in printed.splitlines(keepends=True)
    )


def _same(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, _FLAGS)


def rewrite(replaced: Iterable[tuple[Block, str]]) -> None:
    """Put other texts into blocks of pages."""
    for block, text in sorted(replaced, key=lambda pair: -pair[0].line):
        path = ROOT / block.page
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        lines[block.line : block.line + block.text.count("\n")] = text.splitlines(keepends=True)
        path.write_text("".join(lines), encoding="utf-8")
