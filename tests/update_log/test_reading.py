"""Which batches of a log count, how far it goes, and what is refused (SPEC-UPDATE-LOGS section 4)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.update_log.logs import EPOCH, LogMaker, gradient, step_of
from ucpformat.errors import UcpError
from ucpformat.model.dtype import dtype
from ucpformat.update_log.documents import LogPiece
from ucpformat.update_log.drafts import Captured, StepDraft
from ucpformat.update_log.durability import Extent, extent_of, require_on_branch
from ucpformat.update_log.forms import values_of
from ucpformat.update_log.place import LogPlace
from ucpformat.update_log.reading import StoredLog, Stretch
from ucpformat.update_log.small_optimizer import replay_small
from ucpformat.update_log.steps import entries_of
from ucpformat.update_log.validation import log_problems


@pytest.fixture
def maker(tmp_path: Path) -> LogMaker:
    return LogMaker(tmp_path / "updates.ucplog")


def extent(maker: LogMaker, begin: tuple[int, int] = (0, 0)) -> Extent:
    with StoredLog(str(maker.path)) as log:
        return extent_of(log, begin)


def branch_of(maker: LogMaker) -> list[Stretch]:
    with StoredLog(str(maker.path)) as log:
        return log.branch()


def codes(maker: LogMaker) -> list[str]:
    return [problem.code for problem in log_problems(str(maker.path))]


def test_a_log_is_read_as_it_was_written(maker: LogMaker) -> None:
    maker.epoch()
    maker.steps(0, 0, 5)
    assert codes(maker) == []
    with StoredLog(str(maker.path)) as log:
        chains = [log.chain(0, rank) for rank in range(2)]
        for step, batches in enumerate(zip(*(chain.batches for chain in chains), strict=True)):
            steps = [next(iter(log.steps_of(batch))) for batch in batches]
            found = entries_of(steps, EPOCH)
            for number in (0, 1):
                piece, logged = EPOCH.pieces[number], found[number]
                values = np.zeros(piece.shape, np.float32)
                if logged.entry.form == "dense":
                    values[...] = values_of(logged.entry, logged.data, piece.shape, dtype("float32").numpy)
                    whole = gradient(step, (4, 3))
                    assert np.array_equal(values, whole[piece.offset[0] : piece.offset[0] + 2])
            assert (2 in found) == (step % 3 == 0)
    assert extent(maker).stop_step == 5


def test_other_objects_are_ignored(maker: LogMaker) -> None:
    """UCP-D-150, UCP-R-038."""
    maker.epoch()
    maker.steps(0, 0, 1)
    for name in ("notes.txt", "epochs/01.json", "batches/0/0/.half", "batches/0/0/00.batch"):
        (maker.path / name).write_bytes(b"?")
    assert codes(maker) == []


def test_an_object_is_created_exclusively_and_whole(maker: LogMaker) -> None:
    """UCP-W-036."""
    maker.epoch()
    key = maker.batch(0, 0, 0)
    before = (maker.path / key).read_bytes()
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        maker.put(key, b"another")
    assert (maker.path / key).read_bytes() == before
    assert [one.name for one in (maker.path / key).parent.iterdir()] == ["0.batch"]


@pytest.mark.parametrize("name", ["memory://log-of-tests"])
def test_an_object_store_takes_a_log(name: str) -> None:
    place = LogPlace(f"{name}/updates.ucplog")
    place.create("log.json", [memoryview(json.dumps({}).encode())])
    with pytest.raises(UcpError, match="UCP-E-EXISTS"):
        place.create("log.json", [memoryview(b"{ }")])
    place.remove(["log.json"])
    place.create("log.json", [memoryview(b"{}")])
    place.remove(["log.json"])


class TestTorn:
    """What a crash leaves at the end of a log is cut."""

    @given(data=st.data())
    def test_a_prefix_of_the_last_batch(
        self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
    ) -> None:
        maker = LogMaker(tmp_path_factory.mktemp("torn") / "l.ucplog")
        maker.epoch()
        maker.steps(0, 0, 2)
        maker.batch(0, 0, 2)
        path = maker.path / maker.batch(0, 1, 2)
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
        found = extent(maker)
        assert (found.stop_step, found.lost, len(found.faults)) == (2, False, 1)
        assert codes(maker) == ["UCP-W-UNREFERENCED"]

    @given(data=st.data())
    def test_a_flipped_bit(self, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        """UCP-D-157, UCP-D-162: every bit of a batch counts."""
        maker = LogMaker(tmp_path_factory.mktemp("flip") / "l.ucplog")
        maker.epoch()
        maker.steps(0, 0, 2)
        path = maker.path / "batches/0/1/1.batch"
        damaged = bytearray(path.read_bytes())
        bit = data.draw(st.integers(0, 8 * len(damaged) - 1))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert extent(maker).stop_step == 1
        assert len(codes(maker)) == 1

    def test_a_batch_behind_one_that_does_not_count(self, maker: LogMaker) -> None:
        """UCP-R-040."""
        maker.epoch()
        maker.steps(0, 0, 4)
        (maker.path / "batches/0/1/2.batch").unlink()
        found = extent(maker)
        assert (found.stop_step, found.lost) == (2, True)
        assert codes(maker) == ["UCP-E-LOG"]


class TestBatches:
    """A batch that contradicts its key, its epoch, or itself."""

    def refused(self, maker: LogMaker, match: str) -> None:
        (problem,) = log_problems(str(maker.path))
        assert problem.code == "UCP-E-LOG"
        assert match in problem.message

    def test_another_key(self, maker: LogMaker) -> None:
        """UCP-D-151."""
        maker.epoch()
        path = maker.path / maker.batch(0, 0, 0)
        path.rename(path.with_name("1.batch"))
        maker.batch(0, 1, 0)
        (maker.path / "batches/0/0/0.batch").write_bytes((maker.path / "batches/0/1/0.batch").read_bytes())
        assert "is not the one that its key says" in log_problems(str(maker.path))[0].message

    def test_another_log(self, maker: LogMaker) -> None:
        """UCP-D-158."""
        epoch = maker.epoch()
        maker.epochs[0] = (replace(epoch, log="0" * 32), maker.epochs[0][1])
        maker.batch(0, 0, 0)
        self.refused(maker, "another log")

    def test_another_chain(self, maker: LogMaker) -> None:
        """UCP-D-159."""
        maker.epoch()
        maker.steps(0, 0, 1)
        maker.batch(0, 0, 1, previous="sha256:" + "0" * 64)
        self.refused(maker, "goes on from another one")

    def test_pieces_of_another_rank(self, maker: LogMaker) -> None:
        """UCP-D-160."""
        maker.epoch()
        maker.batch(0, 0, 0, drafts=[step_of(EPOCH, 1, 0)])
        self.refused(maker, "none of this rank")

    def test_entries_out_of_order(self, maker: LogMaker) -> None:
        maker.epoch()
        draft = step_of(EPOCH, 0, 0)
        draft.captured.reverse()
        maker.batch(0, 0, 0, drafts=[draft])
        self.refused(maker, "ascend by their pieces")

    def test_another_length(self, maker: LogMaker) -> None:
        """UCP-D-161."""
        maker.epoch()
        values = np.ones((1, 3), np.float32)
        maker.batch(0, 0, 0, drafts=[StepDraft([Captured(0, values)])])
        path = maker.path / "batches/0/0/0.batch"
        path.write_bytes(path.read_bytes()[:-12])
        assert extent(maker).stop_step == 0

    @pytest.mark.parametrize("places", [[1, 1], [2, 1], [6], [70000]])
    def test_places_that_do_not_ascend_or_leave_the_piece(self, maker: LogMaker, places: list[int]) -> None:
        """UCP-D-163."""
        maker.epoch()
        values = np.ones(len(places), np.float32)
        wrong = Captured(0, values, np.array(places) & 0xFFFF)
        maker.batch(0, 0, 0, drafts=[StepDraft([wrong])])
        maker.batch(0, 1, 0)
        self.refused(maker, "")

    @pytest.mark.parametrize("rows", [[1, 0], [0, 0], [2]])
    def test_rows_that_do_not_ascend_or_leave_the_piece(self, maker: LogMaker, rows: list[int]) -> None:
        """UCP-D-163."""
        maker.epoch()
        values = np.ones((len(rows), 3), np.float32)
        for rank in (0, 1):
            wrong = Captured(
                rank, values, np.array(rows if rank == 0 else [*range(len(rows))]), are_rows=True
            )
            maker.batch(0, rank, 0, drafts=[StepDraft([wrong])])
        self.refused(maker, "")

    def test_options_of_other_groups(self, maker: LogMaker) -> None:
        """UCP-D-164, UCP-D-169."""
        maker.epoch()
        maker.batch(0, 0, 0, options=({}, {}))
        self.refused(maker, "options of 2 groups")

    def test_a_skipped_step_with_a_gradient(self, maker: LogMaker) -> None:
        """UCP-D-165."""
        maker.epoch()
        draft = step_of(EPOCH, 0, 0)
        draft.skipped = True
        maker.batch(0, 0, 0, drafts=[draft])
        self.refused(maker, "skipped")

    def test_rows_of_a_buffer(self, maker: LogMaker) -> None:
        """UCP-D-166."""
        maker.epoch()
        rows = Captured(2, np.ones(1, np.float32), np.array([0]), are_rows=True)
        maker.batch(0, 0, 0, drafts=[StepDraft([rows])])
        self.refused(maker, "a value is dense")

    def test_a_gradient_of_some_pieces(self, maker: LogMaker) -> None:
        """UCP-D-167."""
        maker.epoch()
        maker.batch(0, 0, 0)
        maker.batch(0, 1, 0, drafts=[StepDraft([])])
        self.refused(maker, "not of every piece")

    def test_ranks_that_disagree(self, maker: LogMaker) -> None:
        """UCP-D-168."""
        maker.epoch()
        maker.batch(0, 0, 0, drafts=[StepDraft([], skipped=True)])
        maker.batch(0, 1, 0, drafts=[StepDraft([])])
        self.refused(maker, "have skipped the step")

    def test_options_that_differ(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.batch(0, 0, 0)
        maker.batch(0, 1, 0, options=({"lr": 0.25},))
        self.refused(maker, "other options")


class TestBranches:
    """Epochs, and which of their steps count."""

    def test_a_recovery_gives_up_what_lay_behind(self, maker: LogMaker) -> None:
        """UCP-R-039, UCP-W-038."""
        maker.epoch()
        maker.steps(0, 0, 6)
        maker.epoch(1, 4, after=0)
        maker.steps(1, 4, 5)
        maker.batch(0, 0, 6)  # a process of the first epoch that is not dead
        found, branch = extent(maker), branch_of(maker)
        assert [(one.stored.epoch.epoch, one.stop_step) for one in branch] == [(0, 4), (1, None)]
        assert [(one.epoch.epoch, one.begin, one.stop) for one in found.replayed] == [(0, 0, 4), (1, 4, 5)]
        assert [len(one.batches()) for one in found.replayed] == [8, 2]
        assert found.stop_step == 5
        require_on_branch(branch, 0, 4, "a")
        require_on_branch(branch, 1, 4, "b")
        require_on_branch(branch, 1, 9, "b")
        for epoch, step in ((0, 5), (1, 3), (7, 4)):
            with pytest.raises(UcpError, match="UCP-E-LOG"):
                require_on_branch(branch, epoch, step, "c")

    def test_the_greatest_epoch_wins(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.steps(0, 0, 6)
        maker.epoch(1, 5, after=0)
        maker.steps(1, 5, 9)
        maker.epoch(2, 3, after=0)
        maker.steps(2, 3, 4)
        assert [one.stored.epoch.epoch for one in branch_of(maker)] == [0, 2]
        assert extent(maker).stop_step == 4
        assert codes(maker) == []

    def test_durable_is_what_every_rank_has(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.batch(0, 0, 0, 4)
        maker.batch(0, 1, 0, 2)
        maker.batch(0, 1, 2, 2)
        maker.batch(0, 1, 4, 2)
        assert extent(maker).stop_step == 4

    def test_an_epoch_that_lacks_the_steps_before_the_next_is_a_loss(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.steps(0, 0, 4)
        maker.epoch(1, 4, after=0)
        maker.steps(1, 4, 6)
        (maker.path / "batches/0/0/3.batch").unlink()
        found = extent(maker)
        assert (found.stop_step, found.lost) == (3, True)

    def test_epochs_that_do_not_follow_from_one_another(self, maker: LogMaker) -> None:
        """UCP-D-152, UCP-D-153."""
        maker.epoch()
        maker.epoch(1, 4, after=0)
        (maker.path / "epochs/0.json").unlink()
        data = json.loads((maker.path / "epochs/1.json").read_text()) | {"epoch": 0, "after": None}
        (maker.path / "epochs/0.json").write_text(json.dumps(data))
        assert codes(maker) == ["UCP-E-LOG"]
        (maker.path / "epochs/0.json").write_text(json.dumps(data | {"log": "0" * 32}))
        assert set(codes(maker)) == {"UCP-E-LOG"}

    def test_damage_before_the_epoch_of_a_checkpoint_is_of_no_concern(self, maker: LogMaker) -> None:
        """UCP-R-040."""
        maker.epoch()
        maker.steps(0, 0, 4)
        maker.epoch(1, 4, after=0)
        maker.steps(1, 4, 6)
        (maker.path / "batches/0/0/2.batch").unlink()
        # Of its own epoch, what ends before it is of none either; a batch that is missing may have been longer.
        for begin, wanted in (
            ((0, 1), (2, True)),
            ((0, 2), (2, True)),
            ((0, 3), (6, False)),
            ((1, 4), (6, False)),
        ):
            found = extent(maker, begin)
            assert (found.stop_step, found.lost) == wanted

    def test_steps_that_were_removed(self, maker: LogMaker) -> None:
        """UCP-R-039."""
        maker.epoch()
        maker.steps(0, 0, 4)
        for rank in (0, 1):
            (maker.path / f"batches/0/{rank}/0.batch").unlink()
        with StoredLog(str(maker.path)) as log:
            with pytest.raises(UcpError, match="UCP-E-LOG"):
                extent_of(log, (0, 0))
            found = extent_of(log, (0, 1))
        assert (found.stop_step, found.lost) == (4, False)

    def test_a_batch_that_begins_within_another(self, maker: LogMaker) -> None:
        """UCP-D-159."""
        maker.epoch()
        for rank in (0, 1):
            maker.batch(0, rank, 0, 2)
            maker.batch(0, rank, 2, 1)
        maker.batch(0, 1, 1, 1)
        found = extent(maker)
        assert (found.stop_step, found.lost) == (2, True)
        assert codes(maker) == ["UCP-E-LOG"]

    def test_a_rank_that_the_epoch_has_not(self, maker: LogMaker) -> None:
        """UCP-D-158."""
        maker.epoch()
        maker.steps(0, 0, 1)
        path = maker.path / "batches/0/2/0.batch"
        path.parent.mkdir()
        path.write_bytes((maker.path / "batches/0/1/0.batch").read_bytes())
        assert codes(maker) == ["UCP-E-LOG"]

    def test_batches_of_no_epoch(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.steps(0, 0, 1)
        (maker.path / "epochs/0.json").unlink()
        assert codes(maker) == ["UCP-E-MISSING"]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"after": {"epoch": 0, "digest": "sha256:" + "0" * 64}}, "UCP-E-LOG"),
        ({"groups": [[0], [0]]}, "UCP-E-LOG"),
        ({"groups": [[1]]}, "UCP-E-LOG"),
        ({"groups": []}, "UCP-E-LOG"),
        ({"ranks": 1}, "UCP-E-LOG"),
        ({"pieces": []}, "UCP-E-LOG"),
        ({"pieces": [{"tensor": 0, "rank": 0, "offset": [0, 0], "shape": [5, 3]}]}, "UCP-E-LOG"),
        ({"pieces": [{"tensor": 0, "rank": 0, "offset": [0], "shape": [4]}]}, "UCP-E-LOG"),
        ({"pieces": [{"tensor": 9, "rank": 0, "offset": [0], "shape": [4]}]}, "UCP-E-LOG"),
        ({"tensors": [EPOCH.tensors[0].to_json(), EPOCH.tensors[1].to_json() | {"atom": "w"}]}, "UCP-E-NAME"),
        (
            {"tensors": [EPOCH.tensors[0].to_json(), EPOCH.tensors[1].to_json() | {"dtype": "?"}]},
            "UCP-E-DTYPE",
        ),
    ],
)
def test_an_epoch_document_that_contradicts_itself(
    maker: LogMaker, change: dict[str, object], code: str
) -> None:
    """UCP-D-153 to UCP-D-156."""
    maker.put("epochs/0.json", json.dumps(EPOCH.to_json() | change).encode())
    assert code in codes(maker)


@given(cuts=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=4))
def test_pieces_that_overlap_or_leave_gaps(cuts: list[tuple[int, int]]) -> None:
    """UCP-D-155: whatever pieces there are, none is missing and none twice, or it is said."""
    pieces = tuple(LogPiece(0, 0, (row, column), (4 - row, 3 - column)) for row, column in cuts)
    value = replace(EPOCH, pieces=(*pieces, EPOCH.pieces[2]))
    _, problems = EPOCH.structure(value.to_json(), at="e")
    held = np.zeros((4, 3), int)
    for row, column in cuts:
        held[row:, column:] += 1
    assert bool(problems) == bool((held != 1).any())


class TestSmallOptimizer:
    """UCP-R-045."""

    def test_it_replays_what_the_text_says(self, maker: LogMaker) -> None:
        maker.epoch()
        maker.steps(0, 0, 4)
        maker.epoch(1, 4, after=0)
        maker.steps(1, 4, 7)
        rows = [Captured(n, np.ones((1, 3), np.float32), np.array([1]), are_rows=True) for n in (0, 1)]
        for rank in (0, 1):
            maker.batch(1, rank, 7, drafts=[StepDraft([], skipped=True)])
            maker.batch(1, rank, 8, drafts=[StepDraft([rows[rank]])], options=({"lr": {"$float": "1.0"}},))
        values = {"w": np.ones((4, 3), np.float32), "mean": np.zeros(2, np.float32)}
        wanted = values["w"].copy()
        for step in range(7):
            wanted -= np.float32(0.5) * gradient(step, (4, 3))
        wanted[[1, 3]] -= 1
        with StoredLog(str(maker.path)) as log:
            assert replay_small(log, values, (0, 0)) == (9, "bitwise")
        assert np.array_equal(values["w"], wanted)
        assert values["mean"].tolist() == [6.0, 6.0]

    @pytest.mark.parametrize("change", [{"optimizer": "torch.optim.SGD"}, {"tensors": EPOCH.tensors[:1]}])
    def test_it_refuses_what_is_not_its_own(self, maker: LogMaker, change: dict[str, Any]) -> None:
        pieces = EPOCH.pieces[:2] if "tensors" in change else EPOCH.pieces
        maker.epoch(**change, pieces=pieces)
        maker.steps(0, 0, 1)
        shapes = {} if "tensors" in change else {"w": np.ones((4, 3), np.float32)}
        with StoredLog(str(maker.path)) as log, pytest.raises(UcpError, match="UCP-E-MISMATCH"):
            replay_small(log, shapes, (0, 0))


def test_there_is_no_log(tmp_path: Path) -> None:
    with pytest.raises(UcpError, match="UCP-E-NOT-FOUND"):
        StoredLog(str(tmp_path))
    assert [one.code for one in log_problems(str(tmp_path))] == ["UCP-E-NOT-FOUND"]
