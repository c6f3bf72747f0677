"""A conversion by the ranks of an MPI job: the first hands out batches, the others copy them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conversion.engine.jobs import assert_same, make

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.distributed
@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_three_ranks_convert(tmp_path: Path, storage: str) -> None:
    source, out = tmp_path / "source.ucp", tmp_path / "out"
    make(source)
    launcher = Path(sys.executable).with_name("mpiexec")
    convert = ("-m", "ucpformat", "convert", str(source), str(out), "--to", "ucp", "--storage", storage)
    done = subprocess.run(
        [launcher, "-n", "3", sys.executable, "-m", "mpi4py.futures", *convert, "--pool", "mpi"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert "digest sha256:" in done.stdout
    assert_same(source, out)
