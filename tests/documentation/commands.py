"""Looks whether a command that a page shows exists, without running it."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Sequence
from importlib import import_module
from typing import Final
from unittest.mock import patch

import click

from tests.documentation.markdown import ROOT


class NoSuchCommandError(AssertionError):
    """A program, a target, a subcommand or an option that is not there."""


def check_command(words: Sequence[str]) -> None:
    """Fail unless ``words`` is a command that could be run from a checkout."""
    match list(words):
        case ["make", *targets]:
            if missing := set(targets) - makefile_targets():
                raise NoSuchCommandError(f"the Makefile has no {', '.join(sorted(missing))}")
        case [pip, "install", *needs] if pip.endswith("pip"):
            for need in needs:
                check_requirement(need)
        case ["python", "-m", "venv", _]:
            pass
        case ["python", "-c", program]:
            imports = [node for node in ast.parse(program).body if isinstance(node, ast.ImportFrom)]
            for node in imports:
                assert node.module is not None
                module = import_module(node.module)
                assert all(hasattr(module, name.name) for name in node.names)
        case [program, *arguments] if program in PROGRAMS:
            parse(program, arguments)
        case [python, "-m", module, *arguments] if python.endswith("python"):
            parse(module, arguments)
        case _:
            raise NoSuchCommandError(f"nobody can check {' '.join(words)!r}")


PROGRAMS: Final = {
    "ucp": "ucpformat.cli",
    "ucpformat": "ucpformat.cli",
    "ucp-conformance": "ucp_conformance.cli",
    "benchmarks": "benchmarks.__main__",
    "benchmarks.scale": "benchmarks.scale",
    "benchmarks.conversion.race": "benchmarks.conversion.race",
}
"""The module in which a program, or what ``python -m`` runs, has its click command ``main``."""


def parse(program: str, arguments: Sequence[str]) -> None:
    """Parse ``arguments`` as the program and its subcommand would, and run nothing. Files need not exist."""
    if program not in PROGRAMS:
        raise NoSuchCommandError(f"nobody knows the program {program!r}")
    command: click.Command = import_module(PROGRAMS[program]).main
    try:
        with patch.object(click.Path, "convert", lambda self, value, parameter, context: value):
            if isinstance(command, click.Group):
                context = click.Context(command)
                _, rest, _ = command.make_parser(context).parse_args(list(arguments))
                if not rest:
                    return
                _, found, arguments = command.resolve_command(context, rest)
                assert found is not None
                command = found
            command.make_context(program, list(arguments))
    except click.exceptions.Exit:
        return  # --help
    except click.ClickException as problem:
        raise NoSuchCommandError(f"{program} {' '.join(arguments)}: {problem.format_message()}") from None


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def check_requirement(need: str) -> None:
    """Fail unless what pip is asked for is in a clone of the repository: nothing is released."""
    if need in {"-r", "-e"}:
        return
    place, _, extras = need.rstrip("]").partition("[")
    if not (place == "." or "/" in place) or not (ROOT / place).exists():
        raise NoSuchCommandError(f"{need} is not in a clone")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if missing := {*filter(None, extras.split(","))} - project["optional-dependencies"].keys():
        raise NoSuchCommandError(f"there is no extra {', '.join(sorted(missing))}")
