"""Values of each rank's own: kept where the size agrees, and never reused silently where it does not."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ucpformat
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import NewSeed, PerRank, PerRankValues, UcpError
from ucpformat.errors import MismatchError
from ucpformat.model.values import OnResize, decode, encode, new_seed
from ucpformat.state_dict.per_rank import AskEach


def save(path: Path, size: int, own: Any, **more: Any) -> list[Any]:
    """Save from ``size`` ranks what ``own`` says of each."""
    return run_threads(
        size,
        lambda group: ucpformat.save(path, {"epoch": 3, "own": own(group.rank), **more}, group=group),
    )


def load(path: Path, size: int, leaf: Any = None, per_rank: AskEach = None) -> list[Any]:
    """What each of ``size`` ranks gets."""

    def work(group: ThreadGroup) -> Any:
        state = {"epoch": 0, "own": leaf(group.rank) if callable(leaf) else leaf}
        found = ucpformat.load(path, state, group=group, per_rank=per_rank)
        assert found["epoch"] == 3
        return found["own"]

    return run_threads(size, work)


def code_of(found: list[Any]) -> set[str]:
    assert all(isinstance(one, UcpError) for one in found), found
    return {one.code for one in found}


def random_states(rank: int) -> dict[str, Any]:
    """What the generators of a rank say: Python's, numpy's and torch's."""
    return {
        "python": random.Random(rank).getstate(),
        "numpy": np.random.RandomState(rank).get_state(),
        "torch": torch.Generator().manual_seed(rank).get_state(),
    }


@pytest.mark.parametrize("rule", ["refuse", "keep", "reseed"])
def test_states_of_generators_come_back_to_their_ranks(tmp_path: Path, rule: OnResize) -> None:
    """UCP-R-024."""
    reports = save(tmp_path / "a", 3, lambda rank: PerRank(random_states(rank), rule))
    assert len({report.digest for report in reports}) == 1
    assert list(ucpformat.validate(tmp_path / "a")) == []
    for leaf in (None, PerRank(0)):
        for rank, found in enumerate(load(tmp_path / "a", 3, leaf)):
            expected = random_states(rank)
            assert found["python"] == expected["python"]
            assert np.array_equal(found["numpy"][1], expected["numpy"][1])
            assert torch.equal(found["torch"], expected["torch"])


def test_refuse_and_keep_never_give_an_entry_twice(tmp_path: Path) -> None:
    """UCP-R-025."""
    for rule in ("refuse", "keep"):
        save(tmp_path / rule, 3, lambda rank, rule=rule: PerRank(f"own {rank}", rule))
    for size in (1, 2, 4):
        assert code_of(load(tmp_path / "refuse", size)) == {"UCP-E-MISMATCH"}
    assert load(tmp_path / "keep", 2) == ["own 0", "own 1"]
    found = load(tmp_path / "keep", 4)
    assert code_of(found) == {"UCP-E-MISMATCH"}
    assert all("nothing for position 3 of 4" in one.message for one in found)


@given(st.lists(st.integers(0, 2**60), min_size=1, max_size=5), st.integers(1, 7))
def test_counters_are_dealt_out_evenly_and_none_is_lost(counts: list[int], size: int) -> None:
    """UCP-R-025: what a resplit gives."""
    values = PerRankValues(tuple(counts), "resplit", "dp")
    got: Any = [values.at(position, size, []) for position in range(size)]
    assert sum(got) == sum(counts)
    if size == len(counts):
        assert got == counts
    else:
        assert max(got) - min(got) <= 1
        assert got == sorted(got, reverse=True)


@given(st.lists(st.integers() | st.text() | st.floats(), min_size=1, max_size=4), st.integers(1, 40))
def test_new_seeds_differ_from_position_to_position_and_size_to_size(entries: list[Any], size: int) -> None:
    """UCP-R-025: what a reseed gives; half of the bits are drawn anew for another size or other entries."""
    values = PerRankValues(tuple(entries), "reseed")
    encoded = encode(list(entries), at="")
    if size == len(entries):
        return
    seeds: Any = [values.at(position, size, encoded) for position in range(size)]
    assert len({one.seed for one in seeds}) == size
    assert all(0 <= one.seed < 2**63 for one in seeds)
    assert [one.seed % 2**20 for one in seeds] == list(range(size))
    assert new_seed(0, size + 1, encoded) != seeds[0].seed


def test_a_seed_is_the_one_of_the_specification() -> None:
    text = '[3,["é",{"a":[0.5,1],"\U0001f600":2,"﷐":null}]]'
    drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 2**63
    entries = ["é", {"﷐": None, "\U0001f600": 2, "a": [0.5, 1]}]
    assert new_seed(2, 3, encode(entries, at="")) == drawn - drawn % 2**20 + 2
    found = PerRankValues(tuple(entries), "reseed").at(2, 3, encode(entries, at=""))
    assert found == NewSeed(new_seed(2, 3, encode(entries, at="")))
    with pytest.raises(MismatchError):
        PerRankValues((1,), "reseed").at(0, 2**20 + 1, [1])


def test_a_cursor_along_an_axis_is_one_for_all_that_share_it(tmp_path: Path) -> None:
    """Two ranks of a tensor-parallel pair read the same samples, and count once (UCP-R-026)."""

    def along(rank: int) -> PerRank:
        return PerRank(100 + rank // 2, "resplit", axis="dp", position=rank // 2, size=2)

    save(tmp_path / "a", 4, along)
    assert ucpformat.open(tmp_path / "a").objects["own"] == PerRankValues((100, 101), "resplit", "dp")
    assert load(tmp_path / "a", 4, along) == [100, 100, 101, 101]
    now = [PerRank(0, axis="dp", position=rank, size=3) for rank in range(3)]
    assert load(tmp_path / "a", 3, lambda rank: now[rank]) == [67, 67, 67]
    one = [PerRank(0, axis="dp", position=0, size=1)] * 2
    assert load(tmp_path / "a", 2, lambda rank: one[rank]) == [201, 201]
    # As many ranks as positions, of another axis: that is no reason to give them out.
    assert code_of(load(tmp_path / "a", 2)) == {"UCP-E-MISMATCH"}
    assert code_of(load(tmp_path / "a", 2, lambda rank: PerRank(0))) == {"UCP-E-MISMATCH"}


def test_whoever_resumes_may_ask_for_something_else(tmp_path: Path) -> None:
    save(tmp_path / "a", 2, lambda rank: PerRank(10 * rank))
    assert load(tmp_path / "a", 4, per_rank="resplit") == [3, 3, 2, 2]
    assert load(tmp_path / "a", 1, per_rank={"own": "keep"}) == [0]
    assert code_of(load(tmp_path / "a", 1, per_rank={"other": "keep"})) == {"UCP-E-MISMATCH"}
    got = load(tmp_path / "a", 3, per_rank=lambda stored, position, size: (stored.entries, position, size))
    assert got == [((0, 10), position, 3) for position in range(3)]
    save(tmp_path / "b", 2, lambda rank: PerRank("text"))
    assert code_of(load(tmp_path / "b", 3, per_rank="resplit")) == {"UCP-E-MISMATCH"}
    assert all(isinstance(one, NewSeed) for one in load(tmp_path / "b", 3, per_rank="reseed"))


def test_one_value_for_all_is_not_given_to_each(tmp_path: Path) -> None:
    """What was saved as one state of a generator would be the same stream on every rank."""
    save(tmp_path / "a", 2, lambda rank: "same")
    assert load(tmp_path / "a", 2) == ["same", "same"]
    assert code_of(load(tmp_path / "a", 2, PerRank(0))) == {"UCP-E-MISMATCH"}
    got = load(tmp_path / "a", 2, PerRank(0), per_rank=lambda stored, position, size: f"{stored} {position}")
    assert got == ["same 0", "same 1"]


def test_ranks_that_contradict_one_another_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"

    def at(position: int, size: int, value: Any = 0) -> PerRank:
        return PerRank(value, axis="dp", position=position, size=size)

    for own in (
        lambda rank: at(0, 1, rank),  # different values at one position
        lambda rank: at(rank, 2 + rank),  # different sizes
        lambda rank: at(0, 2),  # nobody at the other position
        lambda rank: PerRank(0, "keep" if rank else "refuse"),  # different rules
        lambda rank: PerRank(0) if rank else 0,
    ):
        assert code_of(save(path, 2, own)) == {"UCP-E-MISMATCH"}
    assert code_of(save(path, 2, lambda rank: PerRank(-1, "resplit"))) == {"UCP-E-OBJECT"}
    assert not path.exists()
    assert save(path, 1, lambda rank: PerRank(7))[0].digest.startswith("sha256:")


@pytest.mark.parametrize(
    "arguments",
    [
        {"on_resize": "first"},
        {"axis": "dp"},
        {"position": 1},
        {"size": 2},
        {"position": 2, "size": 2},
        {"position": -1, "size": 2},
    ],
)
def test_a_place_that_is_none_is_refused_at_once(arguments: Any) -> None:
    with pytest.raises(ValueError):
        PerRank(0, **arguments)


def test_all_of_it_is_there_without_a_state_and_is_saved_again(tmp_path: Path) -> None:
    save(tmp_path / "a", 2, lambda rank: PerRank([rank], "keep"))
    whole = ucpformat.load(tmp_path / "a")
    assert whole["own"] == PerRankValues(([0], [1]), "keep")
    ucpformat.save(tmp_path / "b", whole)
    assert load(tmp_path / "b", 2) == [[0], [1]]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.sampled_from(["refuse", "keep", "resplit", "reseed"]),
)
def test_encoding_is_undone(entries: list[int], rule: OnResize) -> None:
    value = PerRankValues(tuple(entries), rule, "a b")
    assert decode(encode(value, at=""), at="") == value


def test_in_the_background_as_well() -> None:
    def work(group: ThreadGroup) -> Any:
        with ucpformat.AsyncSaver(group=group) as saver:
            return saver.save(path, {"own": PerRank(group.rank), "epoch": 3}).wait().digest

    with TemporaryDirectory() as scratch:
        path = Path(scratch, "a")
        assert len(set(run_threads(3, work))) == 1
        assert load(path, 3) == [0, 1, 2]
