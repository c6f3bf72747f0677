"""How mistakes are made and listed, and what they are made with."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat
from ucpformat.cli import main
from ucpformat.errors import UcpError

STATE: dict[str, Any] = {
    "model": {"fc1.weight": np.ones((64, 48), np.float32), "fc2.weight": np.ones((16, 64), np.float32)},
    "optim": {"state": {"fc1.weight": {"exp_avg": np.zeros((64, 48), np.float32)}}},
    "epoch": 3,
}

Mistake = Callable[[Path], str]
MISTAKES: dict[str, Mistake] = {}


def mistake(title: str) -> Callable[[Mistake], Mistake]:
    """Register what makes a mistake in a directory, and returns what was said."""

    def register(make: Mistake) -> Mistake:
        assert title not in MISTAKES
        MISTAKES[title] = make
        return make

    return register


def ucp(*arguments: object, code: int = 1) -> str:
    """What ``ucp`` says on its standard error, where it says anything."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if code == 2 else "\n".join(lines)  # after the usage


def said(action: Callable[[], object]) -> str:
    """What the library raises."""
    with pytest.raises(UcpError) as caught:
        action()
    return str(caught.value)


def refusing(number: int) -> Callable[..., Any]:
    """What a system call does that fails so."""

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def run(place: Path) -> Path:
    """A run directory with three checkpoints."""
    for step in (10, 20, 30):
        ucpformat.save(place / f"step-{step}.ucp", STATE, step=step)
    return place
