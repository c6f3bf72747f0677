"""Every public name has an example in its docstring, all examples are true, and docs/api.md shows them."""

from __future__ import annotations

import doctest
import inspect
import re
import warnings
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat as ucp
from tests.documentation.api import members
from tests.documentation.fixtures import names

PACKAGE = Path(ucp.__file__).parent
IMPORTED = {"ucp": ucp, "np": np, "torch": torch}
FLAGS = doctest.ELLIPSIS
MADE = re.compile(r"example\.ucp|\b(?:ckpt|view|atoms|mesh|layout|loss|report|difference)\b")
"""What examples use of `tests.documentation.fixtures`."""


def examples() -> Iterator[doctest.DocTest]:
    """The docstrings with examples of every module."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            yield from (test for test in finder.find(module, extraglobs=IMPORTED) if test.examples)


@pytest.mark.parametrize("test", list(examples()), ids=lambda test: test.name)
def test_examples_are_true(test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if MADE.search(test.docstring or ""):
        test.globs.update(names())
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as torch says, even with no_dist
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", [*ucp.__all__, *(f"cadence.{name}" for name in ucp.cadence.__all__)])
def test_every_public_name_has_an_example(name: str) -> None:
    found: Any = attrgetter(name)(ucp)
    parser = doctest.DocTestParser()
    public = {name: found, **{f"{name}.{member}": value for member, value in members(found)}}
    without = [one for one, value in public.items() if not parser.get_examples(inspect.getdoc(value) or "")]
    assert without == [], "without an example"
