"""The oracle against facts that are known without it."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ucp_conformance.oracle.bytes_of import Grid, boxes_of, crc32c, slow_crc32c
from ucp_conformance.oracle.layouts import Local, holdings, lower, pieces
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.oracle.strict_json import canonical, parse, same

from tests.conformance.suite import CONFORMANCE

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text() | st.floats(-1e15, 1e15),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_the_parser_reads_what_the_library_writes(value: object) -> None:
    data = json.dumps(value, ensure_ascii=False).encode()
    assert same(parse(data, at="x", limit=1 << 20), json.loads(data))


@given(st.text(alphabet='{}[]",:0123456789.eE+-truefalsn\\u \t', max_size=12))
def test_the_parser_refuses_what_the_library_refuses(text: str) -> None:
    try:
        json.loads(text)
        library = True
    except ValueError:
        library = False
    try:
        parse(text.encode(), at="x", limit=1 << 20)
        mine = True
    except RefusalError:
        mine = False
    # The library takes more: duplicates, unpaired surrogates, large numbers.
    assert library or not mine


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_canonical_numbers_read_back(number: float) -> None:
    assert float(canonical(number)) == number


@pytest.mark.parametrize(
    ("number", "text"),
    [(1e21, "1e+21"), (1e20, "100000000000000000000"), (1e-6, "0.000001"), (1e-7, "1e-7"), (0.1, "0.1"),
     (123.456, "123.456"), (5e-324, "5e-324"), (1.5e300, "1.5e+300"), (-0.0, "0"), (-2.5, "-2.5")],
)  # fmt: skip
def test_canonical_numbers_are_those_of_ecmascript(number: float, text: str) -> None:
    assert canonical(number) == text


def test_crc32c_of_the_check_string_is_the_published_one() -> None:
    assert slow_crc32c(b"123456789") == crc32c(b"123456789") == 0xE3069283


@given(st.binary(max_size=200))
def test_both_crcs_agree(data: bytes) -> None:
    assert slow_crc32c(data) == crc32c(data)


@given(st.lists(st.integers(0, 7), max_size=4), st.sampled_from([1, 2, 4, 8, 16]), st.integers(16, 200))
def test_chunks_tile_the_shape_and_stay_within_the_target(shape: list[int], item: int, target: int) -> None:
    grid = Grid.of(shape, item, target)
    seen = [index for position in grid.positions() for index in boxes_of(*grid.box(position))]
    assert len(seen) == len(set(seen)) == math.prod(shape)
    assert item * math.prod(grid.chunk) <= target or math.prod(grid.chunk) == 1


@given(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 4), st.data())
def test_pieces_say_where_every_element_lies(shape: list[int], size: int, data: st.DataObject) -> None:
    mesh = {"axes": [{"name": "a", "size": size}]}
    dim = data.draw(st.integers(0, max(0, len(shape) - 1)))
    steps = [{"kind": "shard", "axis": "a", "dim": dim, "rule": "ceil"}] if shape else []
    if data.draw(st.booleans()):
        steps = [{"kind": "flatten"}, {"kind": "shard", "axis": "a", "dim": 0, "rule": "balanced"}]
    lowered = lower(mesh, steps, shape)
    assert len(holdings(lowered)) == math.prod(shape)
    for local in lowered.values():
        assert local is not None
        assert spread(local, shape) == {cell: place for place, cell in enumerate(local.cells)}


def spread(local: Local, shape: list[int]) -> dict[int, int]:
    """Logical to local positions, by the pieces."""
    found: dict[int, int] = {}
    for piece in pieces(local, shape):
        for index in boxes_of([0] * len(shape), piece["shape"]):
            place = piece["local"] + sum(
                i * stride for i, stride in zip(index, piece["strides"], strict=True)
            )
            cell = 0
            for start, step, extent in zip(piece["offset"], index, shape, strict=True):
                cell = cell * extent + start + step
            assert cell not in found
            found[cell] = place
    return found


def test_the_suite_never_imports_the_reference_but_in_its_driver() -> None:
    importing = [
        path.relative_to(CONFORMANCE).as_posix()
        for path in sorted(CONFORMANCE.rglob("*.py"))
        if "ucpformat as" in path.read_text() or "from ucpformat" in path.read_text()
    ]
    assert importing == ["drivers/python/driver.py", "drivers/python/log_writer.py"]
