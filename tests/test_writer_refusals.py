"""What a writer refuses: before it writes, what no reader takes; then no bools, another content (SPEC 17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

import ucpformat as ucp
from tests.builders import STORAGES
from ucpformat import AtomSpec, CheckpointWriter, SlotSpec
from ucpformat.errors import UcpError
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.envelope import Extension
from ucpformat.model.root import MAX_ROOT_BYTES, Progress, Storage, parse_root


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_a_bool_that_is_neither_0_nor_1_is_not_written(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-026."""
    data = np.frombuffer(b"\0\1\2\1", np.bool_)
    with (
        pytest.raises(UcpError) as caught,
        CheckpointWriter(
            tmp_path / "x", [AtomSpec("w", {"value": SlotSpec("bool", (4,))})], storage=storage
        ) as writer,
    ):
        writer.write("w", "value", data)
    assert caught.value.code == "UCP-E-PADDING"


def test_a_slot_of_another_content_than_expected_is_not_committed(tmp_path: Path) -> None:
    """UCP-W-029."""
    writer = CheckpointWriter(tmp_path / "x", [AtomSpec("w", {"value": SlotSpec("float32", (4,))})])
    writer.expect_contents({("w", "value"): "crc32c-tree:" + "5" * 64})
    writer.write("w", "value", np.ones(4, np.float32))
    with pytest.raises(UcpError) as caught:
        writer.commit()
    writer.abort()
    assert (caught.value.code, caught.value.at) == ("UCP-E-CONTENT", "w/value")
    assert not (tmp_path / "x" / "ucp.json").exists()


def nested(depth: int) -> Any:
    return [] if depth == 0 else [nested(depth - 1)]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"annotations": {"org.example": nested(64)}}, "UCP-E-LIMIT"),
        ({"annotations": {"org.example": "x" * MAX_ROOT_BYTES}}, "UCP-E-LIMIT"),
        ({"annotations": {"org.example": float("nan")}}, "UCP-E-JSON"),
        ({"annotations": {"org.example": 1 << 70}}, "UCP-E-JSON"),
        ({"extensions": {"org.example.x": Extension(safe_to_copy=1)}}, "UCP-E-SCHEMA"),  # type: ignore[arg-type]
        ({"step": -1}, "UCP-E-SCHEMA"),
        ({"step": True}, "UCP-E-SCHEMA"),
        ({"step": 1.5}, "UCP-E-SCHEMA"),
    ],
    ids=lambda value: f"{value}"[:30],
)
def test_what_no_reader_takes_of_a_root_is_refused_before_anything_is_written(
    tmp_path: Path, options: dict[str, Any], code: str
) -> None:
    """UCP-R-003, UCP-S-005."""
    with pytest.raises(UcpError, match=code):
        CheckpointWriter(tmp_path / "c", [], **options)
    assert not (tmp_path / "c").exists()


def test_a_table_over_its_limit_is_not_published(tmp_path: Path) -> None:
    """UCP-S-005: no reader takes it."""
    writer = CheckpointWriter(tmp_path / "c", [AtomSpec("a", {"value": SlotSpec("int8", (40,))})])
    writer.write("a", "value", np.zeros(40, np.int8))
    with patch("ucpformat.writer.MAX_TABLE_BYTES", 8), pytest.raises(UcpError, match="UCP-E-LIMIT"):
        writer.commit()
    assert not (tmp_path / "c").exists()


def test_what_is_committed_is_what_a_reader_takes(tmp_path: Path) -> None:
    """All that a root document may have, in both storages: nothing is parsed again before it is published."""
    mesh = Mesh((MeshAxis("dp", 2),))
    slot = SlotSpec("float32", (4, 2), Layout(mesh, (Shard("dp", 0),)))
    for storage in STORAGES:
        path = tmp_path / storage
        given: dict[str, Any] = {"step": 3, "annotations": {"org.example": [1, "x"]}}
        with CheckpointWriter(path, [AtomSpec("a", {"value": slot})], storage=storage, **given) as writer:
            writer.write("a", "value", np.ones((4, 2), np.float32))
        data = (path / "ucp.json").read_bytes()
        root = parse_root(data, features=frozenset(), extensions=frozenset())
        assert root.seal() == (data, root.digest)
        assert root.progress == Progress(3)


def test_annotations_are_those_that_were_checked(tmp_path: Path) -> None:
    """Whatever their owner does to them before the commit."""
    note: list[Any] = ["as checked"]
    with CheckpointWriter(tmp_path / "c.ucp", [], annotations={"org.example": note}):
        note[0] = float("nan")
    assert ucp.validate(tmp_path / "c.ucp") == []
    with ucp.open(tmp_path / "c.ucp") as found:
        assert found.root.envelope.annotations == {"org.example": ["as checked"]}
