"""Checkpoints and a command line for the tests of the commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from tests.conversion.formats.dcp.cases import dcp_case
from ucpformat.cli import main
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

__all__ = ["dcp_case"]

Ucp = Callable[..., Result]
Make = Callable[..., Path]


@pytest.fixture
def ucp() -> Ucp:
    """Run ``ucp`` with arguments; exceptions that are not refusals surface."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)

    return run


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Write a small checkpoint under a name; ``first`` is the first element of the weight."""

    def write(
        name: str, *, first: float = 0.0, aliases: tuple[str, ...] = (), lr: float = 0.1, blob: bytes = b"x"
    ) -> Path:
        layout = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 0, "even"),))
        atoms = [
            AtomSpec(
                "layer.[bold]w[/bold]",
                {
                    "value": SlotSpec("float32", (64, 64), layout),
                    "step": SlotSpec("float32", ()),
                },
                aliases,
            ),
            AtomSpec("x" * 150, {"value": SlotSpec("int8", (0, 2))}),
        ]
        path = tmp_path / name
        with CheckpointWriter(path, atoms, chunk_bytes=4096, step=7, attempt="a" * 8) as writer:
            data = np.arange(4096, dtype=np.float32).reshape(64, 64)
            data[0, 0] = first
            writer.write("layer.[bold]w[/bold]", "value", data)
            writer.write("layer.[bold]w[/bold]", "step", np.array(7, np.float32))
            writer.write("x" * 150, "value", np.zeros((0, 2), np.int8))
            writer.set_value("epoch", 3)
            writer.set_value("long", "y" * 200)
            writer.set_optimizer("optim", [(["layer.[bold]w[/bold]"], {"lr": lr, "betas": (0.9, 0.95)})])
            writer.add_blob("extra", blob, "application/\x1b[31mred")
        return path

    return write


@pytest.fixture
def checkpoint(make: Make) -> Path:
    """A small good checkpoint."""
    return make("good.ucp")
