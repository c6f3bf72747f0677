"""What messages name exists: options of the command line, keywords of the library, settings of formats."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from torch.distributed.checkpoint.state_dict_saver import save as torch_save

import ucpformat
from ucpformat.cli import main
from ucpformat.conversion.contract.registry import BUILT_IN, registry
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.patterns.library import __file__ as library

# One worker, which parses the package once.
pytestmark = pytest.mark.xdist_group("messages")

PACKAGE = Path(ucpformat.__file__).parent
OTHERS = {
    "save_last": "of Lightning's ModelCheckpoint, which is not installed here",
    "charset": "of media types (RFC 9110 section 8.3)",
}
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)")
KEYWORD = re.compile(r"(?<![\w.'/-])([a-z][a-z_]+)=(?![=\s])")


def strings(module: Path) -> Iterator[tuple[int, str]]:
    """Every string of a module with its line, but docstrings; pieces of f-strings are joined, values left out."""
    tree = ast.parse(module.read_text(encoding="utf-8"))
    inner: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            inner.add(id(body[0].value))
        if isinstance(node, ast.JoinedStr):
            inner.update(map(id, node.values))
    for node in ast.walk(tree):
        if id(node) in inner:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value
        elif isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(parts)


@cache
def messages() -> tuple[tuple[str, str], ...]:
    """Strings of the package that are sentences, and no markup, with their place."""
    return tuple(
        (f"{module.relative_to(PACKAGE)}:{line}", text)
        for module in sorted(PACKAGE.rglob("*.py"))
        for line, text in strings(module)
        if " " in text and not text.startswith("<")
    )


def options() -> set[str]:
    """All options of all commands."""
    found = {"help", "version"}
    with click.Context(main) as context:
        for name in main.list_commands(context):
            command = main.get_command(context, name)
            assert command is not None
            found |= {word[2:] for one in command.params for word in one.opts if word.startswith("--")}
    return found


def keywords() -> set[str]:
    """Parameters of everything public, settings of formats, and parameters of ready-made documents."""
    found = {*inspect.signature(torch_save).parameters, *OTHERS}  # of which some messages speak
    for name in ucpformat.__all__:
        thing = getattr(ucpformat, name)
        members = [thing] if not inspect.isclass(thing) else [thing, *vars(thing).values()]
        for one in members:
            if callable(one):
                found |= set(inspect.signature(one).parameters)
    for function in (convert_checkpoint, EngineOptions):
        found |= set(inspect.signature(function).parameters)
    for foreign in map(registry().format, BUILT_IN):
        found |= {setting.name for setting in (*foreign.import_settings, *foreign.export_settings)}
    for document in Path(library).parent.glob("*.json"):
        found |= set(re.findall(r'"name": "([a-z_]+)"', document.read_text(encoding="utf-8")))
    return found


def test_options_that_messages_name_exist() -> None:
    known = options()
    named = [(place, option) for place, text in messages() for option in OPTION.findall(text)]
    assert len(named) > 30
    assert not [(place, option) for place, option in named if option not in known]


def test_keywords_that_messages_name_exist() -> None:
    known = keywords()
    named = [(place, keyword) for place, text in messages() for keyword in KEYWORD.findall(text)]
    assert len(named) > 20
    assert not [(place, keyword) for place, keyword in named if keyword not in known]


def test_commands_that_messages_name_exist() -> None:
    with click.Context(main) as context:
        known = set(main.list_commands(context))
    named = [
        (place, name)
        for place, text in messages()
        for name in re.findall(r"(?:`|with |by |use )ucp ([a-z]+)", text)
    ]
    assert len(named) > 5
    assert not [(place, name) for place, name in named if name not in known]


def test_the_search_finds_what_does_not_exist(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text('"""Says --nothing."""\nx = f"give --shardz {1} or shard_coutn=3"\n')
    ((_, text),) = strings(module)
    assert (OPTION.findall(text), KEYWORD.findall(text)) == (["shardz"], ["shard_coutn"])
