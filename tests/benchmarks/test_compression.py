"""The benchmark of compressors trains a model, and measures what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from benchmarks.__main__ import main
from benchmarks.compression import Cell, candidates, measure
from benchmarks.trained import train
from ucpformat.model.compressor import compressor_of

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"

pytestmark = pytest.mark.filterwarnings("ignore")  # those of torch's layers


def test_the_model_learns_and_what_it_keeps_is_mixed_precision() -> None:
    trained, first, last = train(32, 1, 30)
    assert last < first - 0.1
    for slots in trained.values():
        assert sorted(slots) == ["exp_avg", "exp_avg_sq", "master", "value"]
        assert torch.equal(slots["value"], slots["master"].bfloat16())
        assert slots["master"].shape == slots["exp_avg_sq"].shape
    assert all((slots["exp_avg_sq"] >= 0).all() for slots in trained.values())


def test_the_rule_chooses_among_what_is_measured() -> None:
    for name, item_bytes in (("bfloat16", 2), ("float32", 4)):
        chosen = compressor_of("auto", name, (1 << 16,))
        assert [codec for codec, one in candidates(item_bytes).items() if one == chosen] == [
            "bitshuffle, lz4 5"
        ]


def test_the_rule_follows_from_the_run_that_is_kept() -> None:
    """Of the codecs that a thread does at 1 GB/s none leaves much less; it is used where it leaves 10 % less."""
    run = json.loads((RESULTS / "compression-run-1.json").read_text())
    slots: dict[str, dict[str, Cell]] = {}
    for cell in run["cells"]:
        slot, codec = cell.pop("slot"), cell.pop("codec")
        slots.setdefault(slot, {})[codec] = Cell(**cell)
    ratios = {}
    for slot, codecs in slots.items():
        fast = {codec: cell.ratio for codec, cell in codecs.items() if cell.encoded_per_second >= 1e9}
        ratios[slot] = fast["bitshuffle, lz4 5"]
        assert max(fast.values()) < 1.01 * ratios[slot], slot
    for slot, ratio in ratios.items():
        kind = slot.split(", ")[1]
        if kind != "float8_e4m3fn":  # measured without scales, with which it is stored
            assert (compressor_of("auto", kind, (1 << 20,)) is not None) == (ratio >= 1.1), slot


def test_zeros_are_small_and_every_codec_is_measured() -> None:
    zeros = {"w": dict.fromkeys(("master", "exp_avg", "exp_avg_sq"), torch.zeros(1 << 15))}
    cells = measure(zeros, 2)
    assert {codec for _, codec in cells} == set(candidates(4))
    for cell in cells.values():
        assert cell.ratio > 20
        assert len(cell.encoding) == len(cell.decoding) == 2


def test_the_command_writes_a_table_and_every_reading(tmp_path: Path) -> None:
    data, text = tmp_path / "run.json", tmp_path / "run.md"
    arguments = [
        "compression",
        "--width",
        "64",
        "--blocks",
        "1",
        "--steps",
        "2",
        "--repeats",
        "1",
        "--no-steady",
    ]
    result = CliRunner().invoke(
        main, [*arguments, "--json", str(data), "--markdown", str(text)], catch_exceptions=False
    )
    assert result.exit_code == 0
    run = json.loads(data.read_text())
    assert run["command"] == f"python -m benchmarks {' '.join(arguments)}"
    assert {cell["slot"] for cell in run["cells"]} >= {
        "value, bfloat16",
        "master, float32",
        "exp_avg, float32",
    }
    assert run["command"] in text.read_text()
