"""The benchmarks of checking, and of objects that answer late, in small: what they count, and that they compare."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import objects, validation


def quiet(_: str) -> None:
    """Nothing is reported."""


@pytest.mark.parametrize("cold", [False, True])
def test_checking_is_compared_in_both_storages(cold: bool, tmp_path: Path) -> None:
    rounds, sizes = validation.compare_validation(
        state_name="gpt", nbytes=1 << 20, repeats=2, cold=cold, directory=tmp_path, report=quiet
    )
    assert {storage for storage, _ in rounds} == set(sizes) == {"plain", "packed"}
    assert all(len(readings) == 2 for readings in rounds.values())
    rows = validation.table(rounds, sizes)
    assert {len(row) for row in rows} == {7}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_objects_are_counted_and_loaded_by_both(tmp_path: Path) -> None:
    """Values are compared in the round that warms up."""
    nbytes, loads = objects.compare_objects(
        state_name="gpt", nbytes=1 << 22, repeats=1, seconds=0, directory=tmp_path, report=quiet
    )
    assert set(loads) == {"ucp", "ucp-unverified", "torch-dcp"}
    (ours,) = loads["ucp"]
    assert nbytes <= ours.nbytes < 1.1 * nbytes
    assert ours.requests <= 4 + 4  # documents, and two packs of which one at most is two calls
    assert {len(row) for row in objects.table(nbytes, loads)} == {7}
