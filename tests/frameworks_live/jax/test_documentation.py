"""Commands of pages that need JAX or Orbax."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.documentation.commands import check_command
from tests.documentation.markdown import run_by
from tests.documentation.running import Reader, commands_of

HERE = "tests/frameworks_live/jax/test_documentation.py"


def test_orbax_takes_part_in_the_benchmark() -> None:
    (block,) = run_by(HERE, "benchmarks/README.md")
    for line in commands_of(block.text):
        for command in line.split(" && "):
            check_command(shlex.split(command, comments=True))


def test_runs_and_items_of_orbax(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tree = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}
    with ocp.CheckpointManager(tmp_path / "run", item_names=("state",)) as manager:
        manager.save(100, args=ocp.args.Composite(state=ocp.args.StandardSave(tree)))
        manager.wait_until_finished()
    (block,) = run_by(HERE, "docs/frameworks/orbax.md")
    Reader(tmp_path).run(block)
    restored = ocp.StandardCheckpointer().restore(tmp_path / "restored")
    assert "100" in repr(sorted((tmp_path / "run").iterdir()))
    assert np.array_equal(restored["state"]["w"], tree["w"])
