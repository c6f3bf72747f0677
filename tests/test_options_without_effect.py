"""Options that would be without effect, and values that there are not: errors, of whatever takes options.

Those of load are in tests/state_dict/test_load_options.py, those of saves in test_stateful.py there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ucpformat as ucp
from ucpformat import Layout, Mesh, MeshAxis, TensorLayout, UcpError

HELD = TensorLayout(Layout(Mesh((MeshAxis("dp", 1),)), ()), (3,))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"keep_last": "3"}, "how many is an integer, not '3'"),
        ({"keep_last": True}, "how many is an integer, not True"),
        ({"keep_best": 1}, "`best` and `metric` go together"),
        ({"metric": "loss"}, "`best` and `metric` go together"),
        ({"mode": "max"}, "`mode` says what is best by a metric"),
        ({"keep_best": 1, "metric": "loss", "mode": "maximum"}, "the mode is min or max, not 'maximum'"),
        ({"debris_age": -1}, "an age is a number of seconds, not -1"),
        ({"asynchronous": True, "arena_bytes": 0}, "an arena has room for a chunk at least, not 0 bytes"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_of_a_manager(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UcpError, match=said):
        ucp.CheckpointManager(tmp_path, **options)


def test_of_what_a_manager_does(tmp_path: Path) -> None:
    with ucp.CheckpointManager(tmp_path) as manager:
        for step in ("5", 5.0, -1, None):
            with pytest.raises(UcpError, match="a step is an integer from 0 on, not"):
                manager.save(step, {"a": 1})  # type: ignore[arg-type]
        manager.save(np.int64(5), {"a": 1})  # type: ignore[arg-type]
        state = {"a": 0}
        with pytest.raises(UcpError, match="check= is one of structure, semantics, integrity, not 'full'"):
            manager.resume(state, check="full")  # type: ignore[arg-type]
        with pytest.raises(UcpError, match="a step is an integer from 0 on, not '5'"):
            manager.restore(state, "5")  # type: ignore[arg-type]
        with pytest.raises(UcpError, match="only= fits no entry: 'b'"):
            manager.restore(state, only="b")
        assert (state, manager.damaged) == ({"a": 0}, {})
    with pytest.raises(UcpError, match="this is a checkpoint, and not a directory of them"):
        ucp.CheckpointManager(tmp_path / "step-5.ucp")
    with pytest.raises(UcpError, match="a level is one of structure, semantics, integrity, not 'full'"):
        ucp.validate(tmp_path / "step-5.ucp", "full")  # type: ignore[arg-type]


def test_of_what_reads_and_validates(tmp_path: Path) -> None:
    path = tmp_path / "a.ucp"
    ucp.save(path, {"a": np.zeros(3)})
    with ucp.open(path) as ckpt, pytest.raises(UcpError, match="say where a layout puts the tensor"):
        ckpt.read("a", coord={"dp": 0})
    with pytest.raises(UcpError, match="layout_work= is without effect at the level structure"):
        ucp.validate(path, "structure", layout_work=10)
    with pytest.raises(UcpError, match="expand= is without effect at the level semantics"):
        ucp.examine(path, "semantics", expand=10)
    with pytest.raises(UcpError, match="none of the 1 atoms matches 'b'"):
        ucp.inspect(path, only=["a", "b"])
    with pytest.raises(UcpError, match='by= is "digests" or "bytes"'):
        ucp.diff(path, path, by="content")  # type: ignore[arg-type]
    with ucp.CheckpointManager(tmp_path) as manager, pytest.raises(UcpError, match="saves in the background"):
        manager.save(1, {"a": 1}, when_busy="skip")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"storage": "plain"}, "storage= would be without effect: safetensors is written"),
        ({"compressor": "auto"}, "compressor= would be without effect"),
        ({"drop": ["b/*"]}, "b/"),
        ({"settings": {"nothing": "1"}}, "nothing"),
        ({"source_settings": {"nothing": "1"}}, "nothing"),
        ({"source_format": "nothing"}, "nothing"),
        ({"destination_format": "dcp"}, "the suffix .safetensors is that of safetensors"),
        ({"group": object(), "workers": 2, "pool": "threads"}, "give one of them"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_of_a_conversion(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    ucp.save(tmp_path / "a.ucp", {"a": np.zeros(3)})
    with pytest.raises(UcpError, match=said):
        ucp.convert(tmp_path / "a.ucp", tmp_path / "b.safetensors", **options)
    assert not (tmp_path / "b.safetensors").exists()


@pytest.mark.parametrize("option", ["storage", "durability"])
def test_of_a_writer(tmp_path: Path, option: str) -> None:
    options: dict[str, Any] = {option: "fast"}
    with pytest.raises(UcpError, match=f"{option}= is one of .*, not 'fast'"):
        ucp.CheckpointWriter(tmp_path / "s", [], **options)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "nothing would be moved: give into="),
        ({"into": "a", "device": "cpu"}, "device= says where new tensors are made"),
        ({"into": "a", "message_bytes": 0}, "a message has a byte at least"),
        ({"into": "a", "layouts": {"b": HELD}}, "layouts= says that this rank has a part of it"),
        (
            {"into": "a", "target_layouts": {"b": HELD}},
            "target_layouts= says that this rank has a part of it",
        ),
        ({"target_layouts": {"b": HELD}}, "no rank has this tensor in its state"),
        ({"into": "b"}, "no rank has this tensor in its state"),
    ],
)
def test_of_a_redistribution(options: dict[str, Any], said: str) -> None:
    into = {options["into"]: np.ones(3)} if "into" in options else None
    with pytest.raises(UcpError, match=said):
        ucp.redistribute({"a": np.zeros(3)}, **{**options, "into": into})
    assert into is None or next(iter(into.values())).tolist() == [1, 1, 1]
