"""Every public name has an example in its docstring, and all examples in docstrings of the library are true."""

from __future__ import annotations

import doctest
import inspect
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ucpformat as ucp

PACKAGE = Path(ucp.__file__).parent
NAMES = {"ucp": ucp, "np": np, "torch": torch}
"""What the examples of docstrings find imported."""
FLAGS = doctest.ELLIPSIS


def examples() -> Iterator[doctest.DocTest]:
    """The docstrings with examples of every module."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for path in sorted(PACKAGE.rglob("*.py")):
        if ">>> " in path.read_text(encoding="utf-8"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            module = import_module(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
            yield from (test for test in finder.find(module, extraglobs=NAMES) if test.examples)


@pytest.mark.parametrize("test", list(examples()), ids=lambda test: test.name)
def test_examples_are_true(test: doctest.DocTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "torch.distributed is disabled")  # as torch says, even with no_dist
        runner.run(test, out=said.append)
    assert runner.failures == 0, "".join(said)


@pytest.mark.parametrize("name", ucp.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    found: Any = getattr(ucp, name)
    assert doctest.DocTestParser().get_examples(inspect.getdoc(found) or ""), f"ucp.{name} has no example"
