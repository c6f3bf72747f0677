"""Copies of plain tensors that differ from rank to rank: the checkpoint has those of one rank, or there is none."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ucpformat
from tests.distributed.saving import save_together
from tests.distributed.test_save import ROWS, local_state
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import Layout, Mesh, MeshAxis, Shard, TensorLayout, UcpError
from ucpformat.distributed import replicas
from ucpformat.distributed.save import SaveOptions, SaveReport
from ucpformat.distributed.save_options import Replicas

CHUNK = 4096


def state_of(rank: int, differing: Mapping[str, int]) -> dict[str, Any]:
    """Weights of several chunks that all ranks have alike, but for those that differ from the rank given on."""

    def value(name: str, seed: int, size: int) -> np.ndarray[Any, Any]:
        other = 1000 * rank if rank >= differing.get(name, 99) else 0
        return np.arange(seed, seed + size, dtype=np.float32) + other

    return {
        "model": {
            "weight": value("weight", 1, 5000),
            "running_mean": value("running_mean", 2, 100),
            "running_var": value("running_var", 3, 100),
        },
        "optim": {"state": {"weight": {"exp_avg": value("exp_avg", 4, 5000)}}},
    }


def save_all(
    path: Path, world: int, differing: Mapping[str, int], **options: Any
) -> list[SaveReport | BaseException]:
    def work(group: ThreadGroup) -> SaveReport:
        state = state_of(group.rank, differing)
        return ucpformat.save(path, state, group=group, chunk_bytes=CHUNK, **options)

    return run_threads(world, work)


def assert_is(path: Path, state: Mapping[str, Any]) -> None:
    found = ucpformat.load(path)
    for name, value in state["model"].items():
        assert np.array_equal(found["model"][name], value), name
    assert np.array_equal(
        found["optim"]["state"]["weight"]["exp_avg"], state["optim"]["state"]["weight"]["exp_avg"]
    )


@settings(max_examples=25)
@given(
    st.integers(2, 4),
    st.dictionaries(
        st.sampled_from(["weight", "running_mean", "running_var", "exp_avg"]), st.integers(1, 3), max_size=4
    ),
    st.sampled_from(["packed", "plain"]),
)
def test_the_state_of_the_first_rank_is_saved(
    tmp_path_factory: pytest.TempPathFactory, world: int, differing: dict[str, int], storage: Any
) -> None:
    path = tmp_path_factory.mktemp("replicas") / "a.ucp"
    reports = save_all(path, world, differing, storage=storage)
    assert all(isinstance(one, SaveReport) for one in reports), reports
    assert_is(path, state_of(0, differing))


def test_equal_copies_are_shared_whatever_else_differs(tmp_path: Path) -> None:
    """Buffers of DistributedDataParallel: the parameters are still written by all ranks."""
    equal = save_all(tmp_path / "equal.ucp", 2, {}, replicas="trust")
    compared = save_all(tmp_path / "compared.ucp", 2, {})
    differing = save_all(tmp_path / "differing.ucp", 2, {"running_mean": 1, "running_var": 1})
    nbytes = [[one.nbytes for one in reports if isinstance(one, SaveReport)] for reports in (equal, compared)]
    assert nbytes[0] == nbytes[1]
    with ucpformat.open(tmp_path / "equal.ucp") as one, ucpformat.open(tmp_path / "compared.ucp") as other:
        for atom in one:
            for slot in one[atom]:
                assert one[atom][slot].stored.slot.content == other[atom][slot].stored.slot.content
    written = [one.nbytes for one in differing if isinstance(one, SaveReport)]
    assert sum(written) == sum(nbytes[0])
    assert min(written) > 0.4 * sum(written)


def test_what_differs_is_refused_on_request(tmp_path: Path) -> None:
    found = save_all(tmp_path / "a.ucp", 3, {"running_mean": 2, "running_var": 1}, replicas="check")
    said = "ranks 0 and 2 hold different copies of 2 tensors; broadcast them, or take those of rank 0"
    assert {str(one) for one in found} == {
        f"UCP-E-MISMATCH in {tmp_path / 'a.ucp'} at running_mean/value: {said} by replicas='compare'"
    }
    assert not (tmp_path / "a.ucp" / "ucp.json").exists()
    assert all(isinstance(one, SaveReport) for one in save_all(tmp_path / "a.ucp", 3, {}, replicas="check"))


def test_trust_looks_at_nothing(tmp_path: Path) -> None:
    """What was done before anything was compared: parts of both ranks."""
    save_all(tmp_path / "a.ucp", 2, {"weight": 1}, replicas="trust")
    found = ucpformat.load(tmp_path / "a.ucp")["model"]["weight"]
    assert {bool(one) for one in found == state_of(0, {"weight": 1})["model"]["weight"]} == {True, False}


def test_stages_are_settled_each_for_itself(tmp_path: Path) -> None:
    """Ranks 0 and 2 hold one stage, 1 and 3 another, which differs; what one rank alone holds nobody compares."""

    def work(group: ThreadGroup) -> None:
        stage = group.rank % 2
        values = {f"stage{stage}": np.full(5000, group.rank if stage else 7, np.float32)}
        alone = {f"alone{group.rank}": np.full(3, group.rank)}
        ucpformat.save(tmp_path / "a.ucp", {"model": values | alone}, group=group, chunk_bytes=CHUNK)

    assert run_threads(4, work) == [None] * 4
    found = ucpformat.load(tmp_path / "a.ucp")["model"]
    assert (set(found["stage0"]), set(found["stage1"])) == ({7.0}, {1.0})
    assert [int(found[f"alone{rank}"][0]) for rank in range(4)] == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["compare", "check"])
def test_replicas_of_layouts_are_compared_with_check_alone(tmp_path: Path, mode: Any) -> None:
    mesh = Mesh((MeshAxis("replica", 2), MeshAxis("shard", 2)))
    held = TensorLayout(Layout(mesh, (Shard("shard", 0),)), (8,))

    def work(group: ThreadGroup) -> None:
        part = np.arange(4.0) + 4 * (group.rank % 2) + (0.5 if group.rank == 3 else 0)
        ucpformat.save(tmp_path / "a.ucp", {"w": part}, layouts={"w": held}, group=group, replicas=mode)

    found = run_threads(4, work)
    if mode == "compare":
        assert found == [None] * 4
    else:
        assert {one.message[:36] for one in found if isinstance(one, UcpError)} == {
            "ranks 1 and 3 hold different copies;"
        }


def test_ranks_say_one_digest_of_all_that_they_hold_alike(tmp_path: Path) -> None:
    slots = {(f"t{number:04}", "value"): ROWS["b", "value"] for number in range(500)}
    sent: dict[str, tuple[int, int]] = {}

    def work(group: ThreadGroup) -> None:
        for mode in get_args(Replicas):
            before = group.rounds, group.sent
            options = SaveOptions(durability="none", replicas=mode)
            save_together(tmp_path / mode, lambda: local_state(group.rank, slots), group, options)
            if group.rank == 0:
                sent[mode] = (group.rounds - before[0], group.sent - before[1])

    assert run_threads(3, work) == [None] * 3
    (rounds, size), (rounds_compared, size_compared) = sent["trust"], sent["compare"]
    assert (rounds_compared - rounds, size_compared - size) == (1, 33)


@pytest.mark.parametrize("background", [False, True])
def test_unknown_values_of_options_are_refused(tmp_path: Path, background: bool) -> None:
    save: Any = ucpformat.async_save if background else ucpformat.save
    for option, said in (
        ({"replicas": "chek"}, "replicas= is one of compare, check, trust, not 'chek'"),
        ({"storage": "pack"}, "storage= is one of plain, packed, not 'pack'"),
    ):
        with pytest.raises(UcpError) as caught:
            save(tmp_path / "a.ucp", {"a": 1}, **option)
        assert (caught.value.code, caught.value.message) == ("UCP-E-MISMATCH", said)
    assert not (tmp_path / "a.ucp").exists()


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_a_digest_of_blocks_is_that_of_the_whole(parts: list[bytes]) -> None:
    arrays = [np.frombuffer(part, np.uint8) for part in parts]
    with ThreadPoolExecutor(2) as pool, pytest.MonkeyPatch.context() as patch:
        whole = replicas._digest(arrays, pool)
        patch.setattr(replicas, "_BLOCK_BYTES", 7)
        assert replicas._digest(arrays, pool) == whole
        assert replicas._digest([np.frombuffer(b"".join(parts), np.uint8)], pool) == whole
