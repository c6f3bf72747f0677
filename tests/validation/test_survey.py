"""What the validator calls lost is what no reader gets, to the element, and what it does not is read (SPEC 18)."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.builders import (
    MIB,
    STORAGES,
    Forgery,
    State,
    Tensor,
    bits,
    region,
    result_or_refusal,
    save,
    states,
)
from tests.test_damage import Damage, damages, save_with_state
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box
from ucpformat.model.dtype import DTYPES
from ucpformat.model.root import Storage
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.validation import Loss, Survey, examine
from ucpformat.validation.survey import as_slices
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec


def survey_of(path: Path) -> Survey:
    survey = examine(path, workers=1).survey
    assert survey is not None
    return survey


def read_box(checkpoint: Checkpoint, atom: str, slot: str, box: Box) -> np.ndarray[tuple[int, ...], np.dtype]:
    return checkpoint[atom][slot][region(box)]


def check_survey(path: Path, state: State) -> None:
    """Compare what is said to be lost with what a reader gets."""
    survey = examine(path, workers=1).survey
    opened = result_or_refusal(lambda: open_checkpoint(path, workers=1))
    if isinstance(opened, UcpError):
        return
    assert survey is not None
    losses = {(loss.atom, loss.slot): loss for loss in survey.losses}
    with opened as checkpoint:
        names = result_or_refusal(lambda: list(checkpoint))
        if isinstance(names, UcpError):
            # Of tensors without elements nothing is lost.
            assert survey.parts or survey.losses or not any(tensor.data.size for tensor in state.values())
            return
        for (atom, slot), tensor in state.items():
            whole = Box.whole(tensor.data.shape)
            loss = losses.pop((atom, slot), Loss(atom, slot, tensor.dtype, tensor.data.shape, (), 0))
            kept = [whole]
            for box in loss.boxes:
                kept = [part for one in kept for part in one.subtract(box)]
                found = result_or_refusal(partial(read_box, checkpoint, atom, slot, box))
                assert isinstance(found, UcpError), (atom, slot, box)
            for box in kept:
                found = read_box(checkpoint, atom, slot, box)
                assert found.tobytes() == tensor.data[region(box)].tobytes()
            assert loss.nbytes == sum(box.size for box in loss.boxes) * DTYPES[tensor.dtype].item_bytes
    assert not losses


@given(states(), st.sampled_from(STORAGES), st.sampled_from([16, 64, 5000]), damages())
def test_what_is_lost_cannot_be_read_and_all_else_can(
    tmp_path_factory: pytest.TempPathFactory, state: State, storage: Storage, chunk_bytes: int, damage: Damage
) -> None:
    path = tmp_path_factory.mktemp("lost") / "c"
    save_with_state(path, state, storage, chunk_bytes)
    assume(damage(path))
    check_survey(path, state)


@pytest.mark.parametrize("storage", STORAGES)
def test_rows_of_a_block(tmp_path: Path, storage: Storage) -> None:
    """Of 3 MiB in two chunks, the second block of the first and what a cut leaves of the last."""
    data = bits(1, (768, 1024), DTYPES["float32"])
    state: State = {("fc1.weight", "value"): Tensor(data, "float32")}
    path = tmp_path / "c"
    save(path, state, storage=storage, chunk_bytes=2 * MIB, workers=1)
    assert Forgery(path).table().counts == [1, 1]
    if storage == "packed":
        (first,) = (path / "packs").iterdir()
        last, stop = first, 3 * MIB - 5000
    else:
        first, last = (path / "atoms/fc1.weight/value/c" / str(n) / "0" for n in range(2))
        stop = 3 * MIB // 2 - 5000
    with first.open("r+b") as file:
        file.seek(MIB + 3)
        file.write(b"\x5a")
    with last.open("r+b") as file:
        file.truncate(stop)
    survey = survey_of(path)
    (loss,) = survey.losses
    assert str(loss) == "fc1.weight value [256:384, :], [640:, :] of [768, 1024]"
    assert (survey.gone, survey.partly, survey.lost_bytes) == (0, 1, MIB)
    check_survey(path, state)


def test_columns_of_a_segment(tmp_path: Path) -> None:
    """A chunk in two segments, of columns each: a block of one is some of its rows, and none of the other's."""
    data = bits(1, (1024, 1024), DTYPES["float32"])
    path = tmp_path / "c"
    spec = AtomSpec("w", {"value": SlotSpec("float32", data.shape)})
    with CheckpointWriter(path, [spec], chunk_bytes=8 * MIB, workers=1) as writer:
        for first in (0, 512):
            writer.write("w", "value", data[:, first : first + 512], (0, first))
    rows = Forgery(path).table().rows
    assert len(rows) == 2
    (pack,) = (path / "packs").iterdir()
    with pack.open("r+b") as file:
        file.seek(rows[1][2] + MIB)
        file.write(bytes(8))
    assert [str(loss) for loss in survey_of(path).losses] == ["w value [512:, 512:] of [1024, 1024]"]
    check_survey(path, {("w", "value"): Tensor(data, "float32")})


@pytest.mark.parametrize(("failing", "lost"), [((1,), "[256:512, :]"), ((1, 2, 3, 4), "[256:, :]")])
def test_a_sector_that_cannot_be_read_costs_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: tuple[int, ...], lost: str
) -> None:
    """What lies around it is read, unless the medium fails again and again."""
    data = bits(1, (1536, 1024), DTYPES["float32"])
    save(tmp_path / "c", {("w", "value"): Tensor(data, "float32")}, chunk_bytes=8 * MIB, workers=1)
    read_into = LocalObjects.read_into

    def fails(store: LocalObjects, key: str, start: int, buffers: list[memoryview]) -> None:
        stop = start + sum(buffer.nbytes for buffer in buffers)
        if any(start <= MIB * block + 7 < stop for block in failing):
            raise error("UCP-E-STORE", "Input/output error", at=key)
        read_into(store, key, start, buffers)

    monkeypatch.setattr(LocalObjects, "read_into", fails)
    monkeypatch.setattr(LocalObjects, "glimpse", lambda *_: nullcontext())
    examined = examine(tmp_path / "c", workers=1)
    assert examined.survey is not None
    assert [str(loss) for loss in examined.survey.losses] == [f"w value {lost} of [1536, 1024]"]
    assert [(problem.code, problem.message) for problem in examined.problems] == [
        ("UCP-E-STORE", "Input/output error")
    ]


def test_documents_take_what_they_describe_with_them(tmp_path: Path) -> None:
    state: State = {("a", "value"): Tensor(np.ones(4, np.int8), "int8")}
    for name in ("table", "index", "packs", "state"):
        path = tmp_path / name
        save_with_state(path, state, "packed", 64)
        (path / Forgery(path).reference(name)["key"]).unlink()
        survey = survey_of(path)
        assert not survey.is_whole
        assert survey.state == (name == "state")
        assert [str(part) for part in survey.parts] == (
            ["a: the atom, with all its slots"] if name == "index" else []
        )
        assert [str(loss) for loss in survey.losses] == (
            ["a value all of [4]"] if name in ("table", "packs") else []
        )


def test_a_blob_is_lost_by_name(tmp_path: Path) -> None:
    save_with_state(tmp_path / "c", {}, "packed", 64)
    next((tmp_path / "c/blobs").iterdir()).write_bytes(b"OPAQUE BYTES")
    assert survey_of(tmp_path / "c").blobs == ("extra",)


def test_nothing_is_known_without_a_root_document(tmp_path: Path) -> None:
    assert examine(tmp_path / "none").survey is None
    save(tmp_path / "c", {})
    assert examine(tmp_path / "c", "semantics").survey is None


@pytest.mark.parametrize(
    ("box", "text"),
    [
        (Box((64, 0), (64, 8)), "[64:128, :]"),
        (Box((0, 3), (1, 5)), "[0, 3:]"),
        (Box((0, 0), (16, 8)), "[:16, :]"),
        (Box((5, 2), (2, 1)), "[5:7, 2]"),
    ],
)
def test_boxes_are_written_as_slices(box: Box, text: str) -> None:
    assert as_slices(box, (256, 8)) == text
