"""With ``fence=`` and ``arena_bytes=`` a snapshot keeps to its budget, in bytes that are resident."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import ucpformat as ucp

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")

MIB = 1 << 20
SCRIPT = """
import json, sys
from pathlib import Path
import torch
import ucpformat as ucp
from benchmarks.measure import measured

torch.set_num_threads(1)
directory, budget, sizes = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])
weights = {f"w{number}": torch.nn.Parameter(torch.ones(size)) for number, size in enumerate(sizes)}
optimizer = torch.optim.SGD(weights.values(), lr=1.0, foreach=False)
for weight in weights.values():
    weight.grad = torch.ones_like(weight)
with ucp.AsyncSaver(fence=optimizer, arena_bytes=budget) as saver:
    def save(name):
        saver.save(directory / name, {"model": weights}, chunk_bytes=1 << 20)
        optimizer.step()
        saver.drain()
    small = {"model": {"w0": weights["w0"]}}
    saver.save(directory / "first.ucp", small, fence="staged", chunk_bytes=1 << 20).wait()
    peaks = [measured(lambda: save(f"{number}.ucp")).peak_bytes for number in range(2)]
    print(json.dumps([saver.arena_bytes, *peaks]))
"""


@pytest.mark.parametrize(
    "sizes",
    [[MIB // 16] * 300, [16 * MIB, *[MIB // 64] * 100]],
    ids=["many tensors", "one larger than the budget"],
)
def test_a_snapshot_keeps_to_its_budget(tmp_path: Path, sizes: list[int]) -> None:
    budget = 8 * MIB
    script = [sys.executable, "-c", SCRIPT, str(tmp_path), json.dumps(budget), json.dumps(sizes)]
    # Where the tests lie, since the package may be installed without the benchmarks.
    done = subprocess.run(script, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2])
    arena, *peaks = json.loads(done.stdout)
    assert 4 * sum(sizes) > 8 * budget
    assert arena <= budget
    # Beside the arena a save holds tables, and what is written at once.
    assert max(peaks) <= budget + 8 * MIB
    for number in range(2):
        loaded = ucp.load(tmp_path / f"{number}.ucp")["model"]
        assert all((value == 1 - number).all() for value in loaded.values())
