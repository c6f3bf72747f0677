"""Copies that ranks hold of the same tensor, when it is redistributed: those of one rank, an error, or no look."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ucpformat
from tests.distributed.test_redistribution import DP, held, refusals
from tests.distributed.thread_group import ThreadGroup, run_threads
from ucpformat import Mesh, MeshAxis, Shard, TensorLayout
from ucpformat.geometry import Partial


def copies(rank: int, differing: int) -> dict[str, Any]:
    """Three plain tensors; one that is wanted and one that is not differ from the rank given on."""
    other = 100.0 * rank if rank >= differing else 0.0
    return {"same": np.arange(9.0), "wanted": np.arange(9.0) + other, "left": np.arange(9.0) - other}


WANTED = {name: held(DP, (9,), Shard("dp", 0)) for name in ("same", "wanted")}


@pytest.mark.parametrize("replicas", ["compare", "check", "trust"])
@pytest.mark.parametrize("differing", [1, 2, 99])
def test_copies_that_differ_are_never_mixed_unnoticed(replicas: Any, differing: int) -> None:
    """As by a save: those of the first rank, an error, or nothing is looked at."""

    def work(group: ThreadGroup) -> Any:
        state = copies(group.rank, differing)
        return ucpformat.redistribute(state, target_layouts=WANTED, group=group, replicas=replicas)

    found: list[Any] = run_threads(3, work)
    if replicas == "check" and differing < 3:
        assert {(getattr(one, "code", one), getattr(one, "at", "")) for one in found} == {
            ("UCP-E-MISMATCH", "wanted")
        }
        assert f"ranks 0 and {differing} hold different copies;" in str(found[0])
        return
    parts = {name: np.concatenate([one[name] for one in found]) for name in WANTED}
    assert np.array_equal(parts["same"], np.arange(9.0))
    first = replicas == "compare" or differing > 2
    assert np.array_equal(parts["wanted"], np.arange(9.0)) == first
    assert all("left" not in one for one in found)


def test_replicas_by_a_layout_are_compared_on_request_and_contributions_are_no_copies() -> None:
    mesh = Mesh((MeshAxis("replica", 2), MeshAxis("shard", 2)))
    shared = held(mesh, (8,), Shard("shard", 0))
    summed = held(mesh, (8,), Shard("shard", 0), Partial("replica", "sum"))

    def work(source: TensorLayout, other: float) -> Any:
        def one(group: ThreadGroup) -> Any:
            part = np.arange(4.0) + 4 * (group.rank % 2) + (other if group.rank == 3 else 0)
            target = held(Mesh((MeshAxis("dp", 4),)), (8,))
            return ucpformat.redistribute(
                {"w": part},
                layouts={"w": source},
                target_layouts={"w": target},
                group=group,
                replicas="check",
            )

        return one

    assert refusals(work(shared, 0.5), 4) == {("UCP-E-MISMATCH", "w")}
    for source, factor in ((shared, 1.0), (summed, 2.0)):
        for one in run_threads(4, work(source, 0.0)):
            assert isinstance(one, dict), one
            assert np.array_equal(one["w"], np.arange(8.0) * factor)
    for one in run_threads(4, work(summed, 0.5)):
        assert isinstance(one, dict), one
        assert np.array_equal(one["w"], np.arange(8.0) * 2 + np.where(np.arange(8) > 3, 0.5, 0))


def test_another_word_for_replicas_is_refused() -> None:
    def work(group: ThreadGroup) -> Any:
        return ucpformat.redistribute(copies(0, 9), target_layouts=WANTED, group=group, replicas="first")  # type: ignore[arg-type]

    assert {str(one) for one in run_threads(2, work)} == {
        "UCP-E-MISMATCH: replicas= is one of compare, check, trust, not 'first'"
    }
