"""What documents cost that somebody made to be costly (SPEC section 19): in calls, which no machine's speed changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import ucpformat
from tests.builders import Forgery
from ucpformat import jsonio, schema, validation
from ucpformat.errors import UcpError
from ucpformat.geometry import BlockRule, Blocks, Layout, Mesh, MeshAxis, Shard
from ucpformat.jsonio import loads
from ucpformat.model.compressor import Compressor
from ucpformat.model.values import decode
from ucpformat.storage.compression import decompress
from ucpformat.storage.host_memory import DecodingRoom
from ucpformat.validation import validate
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

PRIME = 2**61 - 1
"""Python's hash of an integer is its remainder by this."""
DECODER = "ucpformat.validation.integrity.decompress"


def calls(work: Callable[[], object]) -> int:
    """How many functions are called, in C and in Python."""
    count = 0

    def note(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def checkpoint_with_values(path: Path, values: dict[str, Any]) -> Path:
    ucpformat.save(path, {"a": np.ones(2, np.float32), "x": 1})
    return Forgery(path).edit("state", lambda state: state.update(values=values)).sealed()


WRAPPERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda inner: {"$tuple": [inner]},
    "dict": lambda inner: {"$dict": [[1, inner]]},
    "object": lambda inner: {"$object": {"type": "a", "value": inner}},
    "list": lambda inner: [inner],
    "dictionary": lambda inner: {"a": inner},
    "key": lambda inner: {"$tuple": [inner]},
}


def nested(wrapper: str, depth: int, inner: Any) -> Any:
    value = inner
    for _ in range(depth):
        value = WRAPPERS[wrapper](value)
    return {"$set": [value]} if wrapper == "key" else value


@pytest.mark.parametrize("inner", [1, {"$wrong": 1}], ids=["sound", "broken"])
@pytest.mark.parametrize("wrapper", sorted(WRAPPERS))
def test_a_value_costs_no_more_than_its_depth(wrapper: str, inner: Any) -> None:
    """209 bytes of nested tuples took half a minute, and twice as long with each level."""
    fits = schema.validator("value").is_valid
    fits(nested(wrapper, 2, inner))  # which compiles patterns, once
    work = [calls(lambda depth=depth: fits(nested(wrapper, depth, inner))) for depth in (4, 8, 16)]  # type: ignore[misc]
    assert work[2] - work[1] <= 2.5 * (work[1] - work[0])


def test_many_wrong_values_are_not_kept_each_with_all_its_alternatives() -> None:
    few, many = (
        calls(lambda count=count: list(schema.problems("value", [{"$x": 1}] * count, "")))  # type: ignore[misc]
        for count in (10, 1000)
    )
    assert many <= 2 * few  # one wrong element is enough to know that the list is wrong


@pytest.mark.parametrize(
    ("element", "most"),
    [([0.9], 900), ({"a": "b"}, 900), ({"$tuple": [1]}, 1100)],
    ids=["list", "dictionary", "tuple"],
)
def test_alternatives_that_cannot_fit_are_not_tried(element: Any, most: int) -> None:
    """Each element was offered to every kind of value: 18 KB of nested lists took two seconds."""
    schema.validator("value").is_valid([element])
    assert calls(lambda: list(schema.problems("value", [element] * 500, ""))) <= 500 * most


def test_of_one_document_a_thousand_problems_are_reported() -> None:
    assert len(list(schema.problems("index", {"atoms": [0] * 5000}, "index/x.json"))) == 1000


def test_no_place_is_made_where_nothing_is_wrong() -> None:
    """A name of a megabyte above a million elements was copied for each of them."""
    document = json.dumps({"n" * 1000: ["\U0001f600" * 3, *range(1000)]}, ensure_ascii=True).encode()
    assert b"\\ud83d" in document
    with patch.object(jsonio, "pointer", side_effect=AssertionError):
        loads(document, at="ucp.json")
    with pytest.raises(UcpError, match="lone surrogate") as refusal:
        loads(b'{"a/b": [1, {"c": "\\ud800"}]}', at="ucp.json")
    assert refusal.value.at == "ucp.json#/a~1b/1/c"


@pytest.mark.parametrize("kind", ["set", "frozenset", "dict", "ordered"])
def test_keys_that_share_a_hash_are_refused_before_they_are_compared(kind: str) -> None:
    def value(count: int) -> Any:
        keys = [str(PRIME * number) for number in range(1, count + 1)]
        encoded: list[Any] = [{"$int": text} for text in keys]
        if kind in {"set", "frozenset"}:
            return {
                f"${kind}": sorted(encoded, key=lambda key: json.dumps(key, separators=(",", ":")).encode())
            }
        pairs = [[key, 0] for key in encoded]
        if kind == "dict":
            return {"$dict": pairs}
        return {"$object": {"type": "collections.OrderedDict", "value": pairs}}

    assert len(decode(value(60), at="x")) == 60  # type: ignore[arg-type]
    with pytest.raises(UcpError, match="UCP-E-LIMIT") as refusal:
        decode(value(70), at="values/x")
    assert refusal.value.at.startswith("values/x")


def test_a_sound_state_document_is_decoded_once(tmp_path: Path) -> None:
    values = {"x": nested("tuple", 20, 1), "y": nested("object", 12, {"a": [1.5]})}
    path = checkpoint_with_values(tmp_path / "a.ucp", values)
    with patch.object(schema, "validator", wraps=schema.validator) as asked:
        assert validate(path) == []
    assert "state" not in {call.args[0] for call in asked.call_args_list}


def test_layouts_of_more_ranges_than_the_documents_have_bytes_are_passed_over(tmp_path: Path) -> None:
    """A checkpoint of 3,610 bytes with six layouts of a million blocks took a minute and a half."""
    mesh = Mesh((MeshAxis("a", 2),))
    specs = [
        AtomSpec(
            f"w{number}",
            {"value": SlotSpec("uint8", (1 << 21,), Layout(mesh, (Blocks(0, rule), Shard("a", 0))))},
        )
        for number, rule in enumerate([BlockRule("ceil", 1 << 20), BlockRule("ceil", 4)])
    ]
    with CheckpointWriter(tmp_path / "a.ucp", specs) as writer:
        for spec in specs:
            writer.write(spec.name, "value", np.zeros(1 << 21, np.uint8))
    problems = validate(tmp_path / "a.ucp")
    (problem,) = problems
    assert (problem.code, problem.severity) == ("UCP-W-UNCHECKED", "warning")
    with ucpformat.open(tmp_path / "a.ucp") as checkpoint:
        (large,) = [layout for layout in checkpoint.root.layouts if layout.work == 2 << 20]
        assert problem.at == f"ucp.json#/layouts/{checkpoint.root.layouts.index(large)}"
    assert len(validate(tmp_path / "a.ucp", layout_work=7)) == 2
    assert len(validate(tmp_path / "a.ucp", layout_work=8)) == 1


def test_what_layouts_may_cost_follows_the_bytes_that_are_there(tmp_path: Path) -> None:
    """Stated lengths would let a small document ask for any amount of work."""
    mesh = Mesh((MeshAxis("a", 1 << 10),))
    layout = Layout(mesh, (Blocks(0, BlockRule("ceil", 1 << 9)), Shard("a", 0)))
    with CheckpointWriter(
        tmp_path / "a.ucp", [AtomSpec("w", {"value": SlotSpec("uint8", (8,), layout)})]
    ) as writer:
        writer.write("w", "value", np.zeros(8, np.uint8))
    forgery = Forgery(tmp_path / "a.ucp")
    forgery.root["parts"][0]["index"]["length"] = 1 << 27
    codes = {problem.code for problem in validate(forgery.sealed(), "semantics")}
    assert {"UCP-E-LENGTH", "UCP-W-UNCHECKED"} <= codes


def compressed(path: Path, codec: str, chunks: int, *, storage: Any = "packed") -> Path:
    """Chunks of 16 MiB, each with one byte that is not zero, and so as short as a codec makes them."""
    options: dict[str, dict[str, Any]] = {"zstd": {"level": 1, "checksum": False}, "gzip": {"level": 9}}
    shape, compressor = (chunks << 24,), Compressor(codec, options[codec])
    spec = AtomSpec("a", {"value": SlotSpec("uint8", shape, None, compressor)})
    with CheckpointWriter(path, [spec], chunk_bytes=1 << 24, storage=storage, workers=1) as writer:
        part = np.zeros(1 << 24, np.uint8)
        part[9] = 1
        for chunk in range(chunks):
            writer.write("a", "value", part, offset=(chunk << 24,))
    return path


@pytest.mark.parametrize("codec", ["zstd", "gzip"])
@pytest.mark.parametrize("storage", ["packed", "plain"])
def test_what_expands_too_far_is_passed_over_and_not_decoded(
    tmp_path: Path, codec: str, storage: str
) -> None:
    """133 KB of zstd took a gigabyte."""
    path = compressed(tmp_path / "a.ucp", codec, 3, storage=storage)
    assert validate(path) == []  # 48 MiB are not too much
    with (
        patch.object(validation, "LEAST_BYTES", 1 << 25),
        patch(DECODER, side_effect=AssertionError),
    ):
        (problem,) = validate(path)
    assert (problem.code, problem.severity) == ("UCP-W-UNCHECKED", "warning")
    assert problem.at.endswith("-0.json#/atoms/0/slots/value")
    with patch(DECODER, wraps=decompress) as decoded:
        assert validate(path, expand=3 << 24) == []
        assert decoded.call_count == 3
    with patch(DECODER, side_effect=AssertionError):
        codes = [found.code for found in validate(path, expand=1 << 25)]
        assert codes == ["UCP-W-UNCHECKED"]


def test_segments_that_share_their_bytes_are_counted_each_time(tmp_path: Path) -> None:
    """A row of 36 bytes could have a chunk of any length looked at once more."""
    with CheckpointWriter(
        tmp_path / "a.ucp", [AtomSpec("a", {"value": SlotSpec("uint8", (1 << 20,))})], chunk_bytes=1 << 16
    ) as writer:
        writer.write("a", "value", np.arange(1 << 20, dtype=np.uint32).astype(np.uint8))
    forged = Forgery(tmp_path / "a.ucp")

    def share(table: Any) -> None:
        for row in table.rows:
            row[2:4] = table.rows[0][2:4]
        table.checksums = [table.checksums[0]] * len(table.checksums)

    forged.edit_table(share)
    with patch.object(validation, "LEAST_BYTES", 1), patch.object(validation, "EXPANSION", 0):
        (problem, *_) = validate(forged.sealed())
        assert problem.code == "UCP-W-UNCHECKED"
    looked_at: list[int] = []
    validate(forged.sealed(), expand=1 << 20, progress=looked_at.append)
    assert sum(looked_at) == 1 << 20


def test_decoded_chunks_have_room_together_or_one_of_them_alone() -> None:
    room = DecodingRoom(10)
    held: list[int] = []
    most: list[int] = []

    def take(nbytes: int) -> None:
        with room.take(nbytes):
            held.append(nbytes)
            most.append(sum(held))
            barrier.wait(nbytes / 1000)
            held.remove(nbytes)

    barrier = Event()
    with ThreadPoolExecutor(8) as executor:
        list(executor.map(take, [4, 5, 20, 3, 3, 3, 10, 1] * 3))
    assert max(most) == 20
    assert all(total == 20 or total <= 10 for total in most)
