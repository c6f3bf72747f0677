"""From one universal checkpoint to another (SPEC 17.5)."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ucpformat
from tests.builders import BLOSC, GZIP, ZSTD, Forgery, State, read_everything, states
from tests.builders import save as write
from tests.conversion.engine.jobs import run_job
from ucpformat.comparison import compare
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine.rewriting import rewrite_job
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box, Layout, Mesh, MeshAxis, Shard
from ucpformat.model.compressor import Compressor
from ucpformat.model.envelope import Extension
from ucpformat.model.root import Storage
from ucpformat.model.state import StateDocument
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

STORAGES: tuple[Storage, ...] = ("plain", "packed")
LAYOUT = Layout(Mesh((MeshAxis("tp", 2),)), (Shard("tp", 0, "ceil"),))


def rewrite(
    source: Path, destination: Path, storage: Storage = "packed", compressor: Compressor | None = None
) -> None:
    convert_checkpoint(
        source,
        destination,
        source_format="ucp",
        destination_format="ucp",
        storage=storage,
        compressor=compressor,
    )


def make(path: Path, storage: Storage) -> None:
    """A checkpoint with everything that one can hold."""
    w = np.arange(600, dtype=np.float32).reshape(60, 10)
    atoms = [
        AtomSpec(
            "w",
            {
                "value": SlotSpec("float32", (60, 10), LAYOUT, GZIP, {"org.example": {"slot": 1}}),
                "exp_avg": SlotSpec("float32", (60, 10), LAYOUT),
                "step": SlotSpec("float32", ()),
            },
            ("head", "tail"),
            {"org.example": {"atom": [1, None]}},
        ),
        AtomSpec("empty", {"value": SlotSpec("int8", (0, 3))}),
    ]
    extensions = {
        "org.example.kept": Extension(must_understand=False, safe_to_copy=True, configuration={"a": 1}),
        "org.example.dropped": Extension(must_understand=False, safe_to_copy=False),
    }
    with CheckpointWriter(
        path,
        atoms,
        storage=storage,
        chunk_bytes=512,
        step=7,
        annotations={"org.example": {"run": "x"}},
        extensions=extensions,
    ) as writer:
        writer.set_value("epoch", 3)
        writer.set_optimizer("optim", [(["w"], {"lr": 0.1, "betas": (0.9, 0.95)})])
        writer.set_state(StateDocument({}, {}, {}, {"org.example": {"state": True}}))
        writer.add_blob("extra", b"\x80\x04opaque", "application/x-thing")
        writer.write("w", "value", w)
        writer.write("w", "exp_avg", -w)
        writer.write("w", "step", np.array(7, np.float32))
        writer.write("empty", "value", np.zeros((0, 3), np.int8))


def content(path: Path) -> dict[str, object]:
    """Everything that a rewriter keeps."""
    with ucpformat.open(path) as checkpoint:
        state = checkpoint.state
        return {
            "atoms": {name: (view.atom.aliases, view.atom.annotations) for name, view in checkpoint.items()},
            "slots": {
                (name, slot): (
                    *(found.dtype.name, found.shape, found.layout, found.read().tobytes()),
                    *(found.stored.slot.content, found.stored.slot.annotations),
                )
                for name, view in checkpoint.items()
                for slot, found in view.items()
            },
            "values": state.values,
            "optimizers": state.optimizers,
            "blobs": {name: (blob.media_type, checkpoint.blobs[name]) for name, blob in state.blobs.items()},
            "annotations": (state.annotations, checkpoint.root.envelope.annotations),
            "progress": checkpoint.root.progress,
            "chunk_bytes": checkpoint.root.chunk_bytes,
        }


@pytest.mark.parametrize("compressor", [None, GZIP, ZSTD, BLOSC], ids=lambda c: c.name if c else "as-is")
@pytest.mark.parametrize("target", STORAGES)
@pytest.mark.parametrize("source", STORAGES)
def test_everything_is_kept(
    tmp_path: Path, source: Storage, target: Storage, compressor: Compressor | None
) -> None:
    """UCP-W-027: names, aliases, slots, values, optimizers, blobs, every logical byte; annotations too."""
    make(tmp_path / "source", source)
    rewrite(tmp_path / "source", tmp_path / "copy", target, compressor)
    assert ucpformat.validate(tmp_path / "copy") == []
    assert content(tmp_path / "copy") == content(tmp_path / "source")
    with ucpformat.open(tmp_path / "source") as a, ucpformat.open(tmp_path / "copy") as b:
        assert compare(a, b).differences == ()
        assert b.root.storage == target
        slots = {
            f"{view.atom.name}/{name}": slot.stored.slot for view in b.values() for name, slot in view.items()
        }
        expected = {"w/value": compressor or GZIP}
        assert {name: slot.compressor for name, slot in slots.items()} == {
            name: expected.get(name, compressor) for name in slots
        }


def test_extensions_that_are_safe_to_copy_are_kept_unchanged_and_others_dropped(tmp_path: Path) -> None:
    """UCP-W-031, UCP-W-032."""
    make(tmp_path / "source", "plain")
    rewrite(tmp_path / "source", tmp_path / "copy")
    with ucpformat.open(tmp_path / "copy") as checkpoint:
        assert checkpoint.root.envelope.extensions == {
            "org.example.kept": Extension(must_understand=False, safe_to_copy=True, configuration={"a": 1})
        }


def test_unknown_write_features_are_refused(tmp_path: Path) -> None:
    """UCP-W-001, although a reader ignores them (UCP-R-009)."""
    make(tmp_path / "source", "packed")
    Forgery(tmp_path / "source").edit("root", lambda root: root.update(write_features=["row-times"])).sealed()
    with ucpformat.open(tmp_path / "source") as checkpoint:
        assert checkpoint["w"]["step"].read() == 7
    with pytest.raises(UcpError) as caught:
        rewrite(tmp_path / "source", tmp_path / "copy")
    assert caught.value.code == "UCP-E-FEATURE"
    assert "row-times" in caught.value.message
    assert not (tmp_path / "copy").exists()


@settings(max_examples=40)
@given(states(), st.sampled_from(STORAGES), st.sampled_from(STORAGES), st.sampled_from([64, 4096]))
def test_any_state_is_rewritten_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, state: State, source: Storage, target: Storage, chunk: int
) -> None:
    """UCP-W-027 for every data type and compressor."""
    folder = tmp_path_factory.mktemp("rewrite")
    write(folder / "source", state, storage=source, chunk_bytes=chunk, durability="none")
    with ucpformat.open(folder / "source") as checkpoint:
        job = rewrite_job(checkpoint)
        run_job(job, folder / "copy", storage=target)
    first, second = read_everything(folder / "source"), read_everything(folder / "copy")
    assert first.keys() == second.keys() == state.keys()
    for key, data in second.items():
        assert (data.dtype, data.shape) == (first[key].dtype, first[key].shape)
        assert data.tobytes() == state[key].data.tobytes()


def test_a_checkpoint_without_state_or_progress(tmp_path: Path) -> None:
    write(tmp_path / "source", {})
    forgery = Forgery(tmp_path / "source")
    del forgery.root["state"]
    forgery.sealed()
    rewrite(tmp_path / "source", tmp_path / "copy", "plain")
    assert ucpformat.validate(tmp_path / "copy") == []
    with ucpformat.open(tmp_path / "copy") as checkpoint:
        assert (len(checkpoint), checkpoint.root.progress) == (0, None)


def test_a_damaged_source_is_refused(tmp_path: Path) -> None:
    """SPEC 17.5: a rewriter verifies what it reads."""
    make(tmp_path / "source", "packed")
    for pack in (tmp_path / "source" / "packs").iterdir():
        content = bytearray(pack.read_bytes())
        content[3] ^= 1
        pack.write_bytes(content)
    with pytest.raises(UcpError) as caught:
        rewrite(tmp_path / "source", tmp_path / "copy")
    assert caught.value.code == "UCP-E-CHECKSUM"
    assert not (tmp_path / "copy").exists()


def test_nothing_more_is_copied_after_a_failure(tmp_path: Path) -> None:
    copied = []
    pause = threading.Event()

    def fail(box: Box, out: object) -> None:
        raise error("UCP-E-SOURCE", "damaged")

    def slow(box: Box, out: object) -> None:
        copied.append(box)
        pause.wait(0.02)

    names = [f"{number:03}" for number in range(200)]
    job = Job(
        [AtomSpec(name, {"value": SlotSpec("int8", (1,))}) for name in names],
        [SlotSource(name, "value", fail if name == "000" else slow) for name in names],
        StateDocument(),
    )
    with pytest.raises(UcpError, match="damaged"):
        run_job(job, tmp_path / "out", workers=1)
    assert len(copied) < len(names) - 1
    assert not (tmp_path / "out").exists()
