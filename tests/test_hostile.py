"""Hostile checkpoints: sealed again after one rule was broken, so that only that rule can speak (SPEC 19).

Every case is refused by the validator and, where reading meets what is broken, by the reader: with the
registered code, with a place, and without memory taken on a document's word.
"""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tests.builders import (
    GZIP,
    MIB,
    Forgery,
    RawTable,
    State,
    Tensor,
    dump,
    read_everything,
    result_or_refusal,
    save,
)
from tests.forgeries import (
    Case,
    make,
    nested,
    pack_file,
    with_crc,
)
from tests.hostile_cases import CASES
from ucpformat.errors import UcpError
from ucpformat.model.compressor import Compressor
from ucpformat.model.dtype import DTYPES
from ucpformat.storage.compression import compress
from ucpformat.validation import validate


def refused(
    path: Path, code: str, at: str, *, reads: bool, spare: int = 4 * MIB, also: frozenset[str] = frozenset()
) -> None:
    """Validator and reader say ``code`` and nothing else, at the place, and take little memory."""
    tracemalloc.start()
    try:
        errors = [problem for problem in validate(path, workers=1) if problem.severity == "error"]
        found = result_or_refusal(lambda: read_everything(path))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert {problem.code for problem in errors} - also == {code}, errors
    assert any(problem.at.startswith(at) for problem in errors), errors
    assert all(problem.at and problem.message for problem in errors)
    if reads:
        assert isinstance(found, UcpError), found
        assert found.code == code, found
        assert found.at, found
        assert found.at.startswith(at), found
    else:
        assert not isinstance(found, UcpError), found
    assert peak < spare


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_one_broken_rule_is_refused_with_its_code_and_place(tmp_path: Path, case: Case) -> None:
    """UCP-V-004; the requirements are those that the cases name."""
    forged = make(tmp_path / "inner" / "c", case.kind)
    case.change(forged)
    largest = max(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    refused(
        forged.sealed(), case.code, case.at, reads=case.reads, spare=4 * MIB + 12 * largest, also=case.also
    )


@pytest.mark.parametrize("kind", ["packed", "boxed", "plain", "gzip", "zstd", "blosc", "plain gzip"])
def test_what_is_broken_above_was_good_and_sealing_keeps_it_good(tmp_path: Path, kind: str) -> None:
    forged = make(tmp_path / "c", kind)
    assert validate(forged.sealed()) == []
    assert validate(forged.edit("index", lambda _: None).edit_table(lambda _: None).sealed()) == []


def test_the_order_of_members_means_nothing(tmp_path: Path) -> None:
    """UCP-D-029: table rows follow the names of slots, wherever these stand."""
    forged = make(tmp_path / "c", "packed")
    before = read_everything(forged.sealed())

    def turn(index: Any) -> None:
        index["atoms"][0]["slots"] = dict(reversed(index["atoms"][0]["slots"].items()))

    after = read_everything(forged.edit("index", turn).sealed())
    assert validate(forged.path) == []
    assert {place: data.tobytes() for place, data in after.items()} == {
        place: data.tobytes() for place, data in before.items()
    }


def seal_text(path: Path, text: bytes) -> None:
    blank = b"sha256:" + b"0" * 64
    (path / "ucp.json").write_bytes(
        text.replace(blank, b"sha256:" + hashlib.sha256(text).hexdigest().encode())
    )


def blank_root(forged: Forgery) -> bytes:
    forged.root["digest"] = "sha256:" + "0" * 64
    return dump(forged.root)


@pytest.mark.parametrize(
    ("code", "change"),
    [
        pytest.param("UCP-E-LIMIT", lambda text: text + b" " * (4 * MIB), id="over 4 MiB"),
        pytest.param("UCP-E-LIMIT", lambda text: nested(400_000), id="deep"),
        pytest.param("UCP-E-LIMIT", lambda text: text[:-1] + b',"x":' + nested(64) + b"}", id="a little too deep"),
        pytest.param("UCP-E-JSON", lambda text: text[:-1] + b',"format":"ucp"}', id="a member twice"),
        pytest.param("UCP-E-JSON", lambda text: text.replace(b'"chunk_bytes":16', b'"chunk_bytes":1e999'), id="inf"),
        pytest.param("UCP-E-JSON", lambda text: b"", id="empty"),
        pytest.param("UCP-E-FORMAT", lambda text: b"[]", id="an array"),
        pytest.param("UCP-E-FORMAT", lambda text: text.replace(b'"format":"ucp"', b'"format":"zip"'), id="zip"),
        pytest.param("UCP-E-SCHEMA", lambda text: text[:-1] + b',"x":1}', id="an unknown member"),
    ],
)  # fmt: skip
def test_a_hostile_root_is_refused(tmp_path: Path, code: str, change: Callable[[bytes], bytes]) -> None:
    """UCP-D-002, UCP-D-005, UCP-D-006, UCP-D-022, UCP-R-002, UCP-R-003, UCP-R-006."""
    forged = make(tmp_path / "c", "packed")
    seal_text(forged.path, change(blank_root(forged)))
    refused(forged.path, code, "ucp.json", reads=True, spare=16 * MIB)


def test_digits_that_occur_twice_are_refused(tmp_path: Path) -> None:
    """UCP-D-018, UCP-D-019, UCP-R-012."""
    forged = make(tmp_path / "c", "packed")
    forged.sealed()
    text = (forged.path / "ucp.json").read_bytes()
    digest = text.split(b'"digest":"')[-1][7:71]
    (forged.path / "ucp.json").write_bytes(text[:-1] + b',"annotations2":"%s"}' % digest)
    found = result_or_refusal(lambda: read_everything(forged.path))
    assert isinstance(found, UcpError)
    assert found.code == "UCP-E-DIGEST"


def test_nothing_is_not_a_checkpoint(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        refused(path, "UCP-E-NOT-FOUND", str(path), reads=True)


def test_segments_that_overlap_in_part_are_refused(tmp_path: Path) -> None:
    """UCP-D-106; equal ones may share their bytes."""
    data = np.concatenate([np.arange(64, dtype=np.int8)] * 3)
    state: State = {(f"a{n}", "value"): Tensor(data[: 128 if n < 2 else 64], "int8") for n in range(3)}
    save(tmp_path / "c", state, workers=1)
    forged = Forgery(tmp_path / "c")

    def share(found: RawTable) -> None:
        found.rows[2][2] = found.rows[1][2]

    def same(found: RawTable) -> None:
        found.rows[1][2] = found.rows[0][2]

    file = pack_file(forged)
    content = file.read_bytes()
    file.write_bytes(content[:128] + bytes(128) + content[256:])
    assert validate(forged.edit_table(same).sealed()) == []
    file.write_bytes(content[:256] + bytes(64))
    forged.edit_table(lambda found: found.rows[1].__setitem__(2, 128))
    refused(forged.edit_table(share).sealed(), "UCP-E-SEGMENT", "packs/", reads=False)


@pytest.mark.parametrize("dtype", ["int4", "float4_e2m1fn", "bool"])
@pytest.mark.parametrize("kind", ["plain", "packed"])
def test_unused_bits_that_are_set_are_reported(tmp_path: Path, kind: Any, dtype: str) -> None:
    """UCP-D-037."""
    data = np.array([[1, 0, 1]], np.uint8).view(DTYPES[dtype].numpy)
    save(tmp_path / "c", {("a", "value"): Tensor(data, dtype)}, storage=kind, workers=1)
    forged = Forgery(tmp_path / "c")
    bad = b"\x01\x80\x01"

    def change(found: RawTable) -> None:
        found.checksums[0] = crc32c(bad)

    forged.edit_table(change)
    forged.edit("index", lambda index: index["atoms"][0]["slots"]["value"].pop("content"))
    if kind == "plain":
        (forged.path / "atoms/a/value/c/0/0").write_bytes(with_crc(bad))
    else:
        pack_file(forged).write_bytes(bad)
    refused(forged.sealed(), "UCP-E-PADDING", forged.reference("table")["key"], reads=False)


@pytest.mark.parametrize("compressor", [None, GZIP])
def test_elements_beyond_the_shape_are_zero(tmp_path: Path, compressor: Compressor | None) -> None:
    """UCP-D-095."""
    data = np.arange(1, 36, dtype=np.int8)
    save(tmp_path / "d", {("a", "value"): Tensor(data, "int8", compressor)}, storage="plain", chunk_bytes=16)
    forged = Forgery(tmp_path / "d")
    chunk = bytes(range(25, 36)) + b"\1"
    content = with_crc(compress(compressor, memoryview(chunk)) if compressor else chunk)
    (forged.path / "atoms/a/value/c/2").write_bytes(content)

    def change(found: RawTable) -> None:
        found.rows[2][3] = len(content)
        found.checksums[2] = crc32c(content[:-4])

    refused(forged.edit_table(change).sealed(), "UCP-E-PADDING", "atoms/a/value/c/2", reads=False)
