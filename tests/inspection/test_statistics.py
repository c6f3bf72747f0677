from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import ucpformat as ucp
from tests.builders import bits
from ucpformat.cli import main
from ucpformat.cli.statistics_table import magnitudes
from ucpformat.errors import UcpError
from ucpformat.inspection import statistics as module
from ucpformat.inspection.element_sums import SlotStatistics, add_elements
from ucpformat.inspection.statistics import statistics
from ucpformat.model.dtype import DTYPES
from ucpformat.storage.checksum import BLOCK_BYTES
from ucpformat.storage.reading import streaming


def summed(data: np.ndarray[Any, Any]) -> SlotStatistics:
    found = SlotStatistics()
    add_elements(found, data.reshape(-1))
    return found


def expected(data: np.ndarray[Any, Any]) -> dict[str, object]:
    """The same figures by other means: one number after another."""
    flat = data.reshape(-1)
    if flat.dtype.kind == "c":
        flat = flat.view(np.float32 if flat.dtype.itemsize == 8 else np.float64)
    values = [float(one) for one in flat]
    finite = [one for one in values if math.isfinite(one)]
    return {
        "count": len(values),
        "nan": sum(math.isnan(one) for one in values),
        "inf": sum(math.isinf(one) for one in values),
        "zeros": sum(one == 0 for one in finite),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
    }


@given(
    dtype=st.sampled_from(sorted(DTYPES)),
    seed=st.integers(0, 1 << 20),
    shape=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
def test_the_figures_of_any_data_type(dtype: str, seed: int, shape: tuple[int, ...]) -> None:
    data = np.asarray(bits(seed, shape, DTYPES[dtype]))
    found = summed(data).to_json()
    for name, value in expected(data).items():
        assert found[name] == value, name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("scale", [1e-35, 1e-18, 1e-6, 1.0, 1e18, 1e37])
def test_sums_of_short_floats_have_the_range_of_float64(scale: float, dtype: str) -> None:
    if dtype == "float16" and scale != 1.0:
        return
    numbers = np.random.default_rng(0).standard_normal(300_001).clip(-4, 4) + 2
    numbers[::7] = 0
    data = (numbers * scale).astype(DTYPES[dtype].numpy)
    wide = data.astype(np.float64)
    found = summed(data)
    assert found.total == pytest.approx(wide.sum(), rel=1e-6)
    assert found.norm == pytest.approx(np.linalg.norm(wide / scale) * scale, rel=1e-6)
    assert (found.minimum, found.maximum) == (wide.min(), wide.max())
    assert found.zeros == np.count_nonzero(wide == 0)


@given(
    dtype=st.sampled_from(["float16", "bfloat16", "float32", "float64"]),
    special=st.lists(
        st.sampled_from([math.nan, -math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-7, -1e-7, 6e4, -6e4])
    ),
    negative=st.booleans(),
)
def test_the_bits_of_floats_tell_their_order(dtype: str, special: list[float], negative: bool) -> None:
    """Elements of one sign, zeros with either sign, NaN and infinities with either sign, among others."""
    others = [-1.5, -2.0] if negative else [1.5, 2.0]
    data = np.array(special + others).astype(DTYPES[dtype].numpy)
    found = summed(data).to_json()
    for name, value in expected(data).items():
        assert found[name] == value, name


@pytest.mark.parametrize("shape", [(1 << 20,), (3, 700, 600), (1, 1, 1 << 19), (5000, 130)])
@pytest.mark.parametrize("chunk_bytes", [1 << 16, 1 << 24])
@pytest.mark.parametrize(
    "options",
    [{}, {"compressor": "auto"}, {"storage": "plain"}],
    ids=["packed", "compressed", "plain"],
)
def test_pieces_tile_large_tensors(
    tmp_path: Path,
    shape: tuple[int, ...],
    chunk_bytes: int,
    options: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_PIECE_BYTES", 1 << 15)
    monkeypatch.setattr(streaming, "TOGETHER_BYTES", BLOCK_BYTES)
    data = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    data.flat[7], data.flat[-3], data.flat[-1] = np.nan, -np.inf, 0
    ucp.save(tmp_path / "a", {"w": data, "small": np.arange(5)}, chunk_bytes=chunk_bytes, **options)
    done: list[int] = []
    with ucp.open(tmp_path / "a") as ckpt:
        views = [ckpt[name]["value"] for name in ("small", "w")]
        small, found = statistics(views, workers=3, progress=done.append)
    finite = data[np.isfinite(data)].astype(np.float64)
    assert (found.count, found.nan, found.inf, found.zeros) == (data.size, 1, 1, 1)
    assert (found.minimum, found.maximum) == (finite.min(), finite.max())
    assert found.mean == pytest.approx(finite.mean(), rel=1e-5, abs=1e-7)
    assert found.norm == pytest.approx(np.linalg.norm(finite), rel=1e-6)
    assert (small.total, small.magnitudes) == (10.0, {0: 1, 1: 2, 2: 1})
    assert sum(done) == data.nbytes + 40


def test_zeros_that_are_not_stored_and_rows_that_were_written_over(tmp_path: Path) -> None:
    table = np.ones((10_000, 64), np.float32)
    zeros = np.zeros(50_000, np.complex64)
    ucp.save(tmp_path / "a", {"table": table, "zeros": zeros})
    table[[7, 4000]] = -2
    ucp.save(
        tmp_path / "b", {"table": table, "zeros": zeros}, base=tmp_path / "a", changed={"table": [7, 4000]}
    )
    with ucp.open(tmp_path / "b") as ckpt:
        of_table, of_zeros = statistics([ckpt["table"]["value"], ckpt["zeros"]["value"]])
    assert (of_table.count, of_table.minimum, of_table.maximum) == (table.size, -2, 1)
    assert of_table.total == table.sum()
    assert (of_zeros.count, of_zeros.zeros, of_zeros.minimum, of_zeros.norm) == (100_000, 100_000, 0, 0)


def test_nothing_is_said_of_what_is_damaged(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a", {"w": np.ones(1000)})
    (pack,) = (tmp_path / "a" / "packs").iterdir()
    pack.write_bytes(pack.read_bytes()[:-1] + b"!")
    with ucp.open(tmp_path / "a") as ckpt, pytest.raises(UcpError, match="UCP-E-CHECKSUM"):
        statistics([ckpt["w"]["value"]])


def test_sums_that_overflow_are_none_in_json() -> None:
    found = summed(np.full(4, 1e308)).to_json()
    assert (found["mean"], found["norm"], found["max"]) == (None, None, 1e308)
    json.dumps(found, allow_nan=False)


def inspected(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["inspect", *map(str, arguments)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("value", "options", "code"),
    [
        (1.0, ["nan", "inf"], 0),
        (np.nan, ["nan"], 1),
        (np.nan, ["inf"], 0),
        (np.inf, ["inf"], 1),
        (np.inf, ["nan"], 0),
        (np.inf, ["nan", "inf"], 1),
    ],
)
def test_fail_on(tmp_path: Path, value: float, options: list[str], code: int) -> None:
    ucp.save(tmp_path / "a", {"w": np.array([0, value], np.float32)})
    result = inspected(tmp_path / "a", *(part for one in options for part in ("--fail-on", one)))
    assert result.exit_code == code
    nan, inf = int(math.isnan(value)), int(math.isinf(value))
    assert f"of 1 tensor {nan} have NaN and {inf} infinities" in result.stdout
    report = inspected(tmp_path / "a", "--stats", "--format", "json")
    assert report.exit_code == 0
    described = json.loads(report.stdout)
    assert described["atoms"][0]["slots"]["value"]["statistics"]["zeros"] == 1
    schema = json.loads((Path(module.__file__).parent / "description.schema.json").read_bytes())
    Draft202012Validator(schema).validate(described)


def test_tensors_with_nan_come_first(tmp_path: Path) -> None:
    ucp.save(tmp_path / "a", {"a": np.ones(3), "z": np.array([np.nan])})
    lines = inspected(tmp_path / "a", "--stats").stdout.splitlines()
    first = lines.index("") + 2
    assert [line.split()[:3] for line in lines[first : first + 2]] == [
        ["z/value", "1", "0"],
        ["a/value", "0", "0"],
    ]


@pytest.mark.parametrize(
    ("counts", "drawn"),
    [
        ({}, ""),
        ({0: 1}, "2^0 @ 2^1"),
        ({-1: 1, 1: 8}, "2^-1 . @ 2^2"),
        ({0: 1, 40: 1}, "2^0 @            @ 2^41"),
    ],
)
def test_magnitudes_are_drawn(counts: dict[int, int], drawn: str) -> None:
    assert magnitudes(counts, ".:-=+*#@") == drawn
