"""A rank that is killed at any point leaves no checkpoint or a good one, never a bad one (SPEC section 8)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.distributed.processes_of_one import SocketGroup, run_processes
from tests.distributed.saving import save_together
from tests.distributed.test_save import TensorLayout, local_state, logical
from tests.searches import fewer
from ucpformat import open as open_checkpoint
from ucpformat import validate
from ucpformat.distributed.local_state import SlotName
from ucpformat.distributed.save import SaveOptions
from ucpformat.geometry import Layout, Mesh, MeshAxis, Shard
from ucpformat.model.root import Storage
from ucpformat.model.state import StateDocument

SIZE = 3
ROWS = Layout(Mesh((MeshAxis("dp", SIZE),)), (Shard("dp", 0),))
SLOTS: dict[SlotName, TensorLayout] = {
    ("w", "value"): ((700, 3), ROWS, None),
    ("w", "exp_avg"): ((700, 3), ROWS, None),
    ("norm", "value"): ((900,), None, None),
}
NEVER = 1 << 30
KILLED = 9


def save_from_processes(
    path: Path, victim: int = 0, point: int = NEVER, storage: Storage = "packed"
) -> list[int]:
    def work(group: SocketGroup) -> None:
        state = StateDocument({"epoch": 3})
        save_together(
            path,
            lambda: local_state(group.rank, SLOTS, state),
            group,
            SaveOptions(storage, chunk_bytes=1024 if storage == "packed" else 4096, workers=2),
        )

    return run_processes(SIZE, work, victim, point)


def is_good(path: Path) -> bool:
    """Whether there is a checkpoint; it has to be the whole one then."""
    if not (path / "ucp.json").exists():
        return False
    assert [problem for problem in validate(path) if problem.severity == "error"] == []
    with open_checkpoint(path) as checkpoint:
        for seed, (name, (shape, _, _)) in enumerate(SLOTS.items()):
            assert np.array_equal(checkpoint[name[0]][name[1]].read(), logical(shape, seed))
        assert checkpoint.objects["epoch"] == 3
    return True


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An earlier checkpoint, beside those that are attempted."""
    path = tmp_path_factory.mktemp("run") / "step-1.ucp"
    assert save_from_processes(path) == [0] * SIZE
    return path


@fewer(2)  # three processes, twice
@given(st.integers(0, SIZE - 1), st.integers(1, 75), st.sampled_from(["packed", "packed", "packed", "plain"]))
def test_a_killed_rank_leaves_no_bad_checkpoint(
    before: Path, victim: int, point: int, storage: Storage
) -> None:
    """A first rank makes some 70 of these calls, the last ones behind the commit; the others make 30.

    In storage plain there are messages with parts of chunks among them.
    """
    with TemporaryDirectory(dir=before.parent) as scratch:
        path = Path(scratch, "step-2.ucp")
        ends = save_from_processes(path, victim, point, storage)
        committed = is_good(path)
        if ends == [0] * SIZE:
            assert committed, "the point lay behind the end"
        elif not committed:
            assert KILLED in ends
            assert save_from_processes(path, storage=storage) == [0] * SIZE, (
                "debris does not keep the next attempt from it"
            )
            assert is_good(path)
            assert list(validate(path)) == []
        assert is_good(before)


def test_points_reach_from_the_first_call_to_behind_the_commit() -> None:
    """So that the test above meets every phase, on every rank."""
    for victim in range(SIZE):
        outcomes = set()
        for point in (1, 12, 25, 90):
            with TemporaryDirectory() as scratch:
                ends = save_from_processes(Path(scratch, "x.ucp"), victim, point)
                outcomes.add((ends[victim] == KILLED, is_good(Path(scratch, "x.ucp"))))
        assert {(True, False), (False, True)} <= outcomes
