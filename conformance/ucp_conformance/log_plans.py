"""What generated lives of update logs are drawn from: plans, which say all that happens before any of it does.

They are no rules of a state machine (hypothesis): docs/campaigns.md has what was found when both were tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import strategies as st

from ucp_conformance.log_model import RATES, VALUES

__all__ = ["FIRST_LIVES", "QUIET", "log_plans"]

SHAPES: Final[tuple[list[int], ...]] = ([3], [2, 2], [], [4, 3], [0, 2], [2, 3, 2], [70_000])
ALSO: Final = ("bfloat16", "float64", "complex128", "int8")
"""Data types of what is no log of `ucp.sgd`."""
_SOME: Final = [False, False, False, True]
_RARELY: Final = [False] * 7 + [True]
_FEW: Final = [False] * 19 + [True]


QUIET: Final[dict[str, Any]] = {
    "lost": [0, 0], "torn": None, "gap": None, "debris": False, "killed": False, "taken": False, "zombie": False,
    "late": False, "checkpoint": False, "pruned": False,
}  # fmt: skip


def _life(*ends: dict[str, Any], batches: Sequence[Sequence[int]] = ((1, 1, 1), (1, 1, 1))) -> dict[str, Any]:
    """Return the life of a log of one tensor and two ranks, three steps in each epoch."""
    step = {"skipped": False, "rates": [0], "forms": ["dense"]}
    epoch = {
        "ranks": 2, "parts": [2], "first_rank": 0, "exactness": "bitwise", "profile": {},
        "steps": [step, {**step, "rates": [3]}, step], "batches": [list(one) for one in batches], "order": [],
        "values": 1, "sums_every": 1, "behind": False,
    }  # fmt: skip
    return {
        "optimizer": "ucp.sgd",
        "tensors": [{"atom": "w", "role": "gradient", "dtype": "float32", "shape": [3]}],
        "groups": [[0]],
        "seed": 0,
        "epochs": [{**epoch, "end": {**QUIET, **end}} for end in ends],
    }


FIRST_LIVES: Final = (
    # A batch of the first epoch goes when a second one is there: the third goes on from the first.
    _life({}, {"gap": [-1, 0]}, {}),
    # What is killed while it writes, and what a zombie and a second heir try.
    _life({"killed": True}, {"zombie": True, "late": True, "taken": True}, {"torn": 0, "debris": True}),
    # Batches are removed behind a checkpoint, and the next one lies in their epoch.
    _life({"lost": [0, 1], "checkpoint": True, "pruned": True}, {"lost": [1, 0], "zombie": True}, {}),
    # The second epoch begins before the durable state, since ranks do not end their batches together.
    _life({"lost": [0, 1]}, {}, batches=((1, 2), (1, 1, 1))),
)
"""Lives that are tried before any are drawn, since chance brings them about late."""


@st.composite
def tensors(draw: st.DrawFn, *, is_small: bool) -> list[dict[str, Any]]:
    """Return up to four tensors, the first with gradients; of a log of `ucp.sgd` all are float32."""
    found: list[dict[str, Any]] = []
    for number in range(draw(st.sampled_from([1, 2, 3, 4]))):
        roles = ["gradient", "gradient", "value", "residual"] if number else ["gradient"]
        # A large one has two blocks of places, and takes long.
        shapes = SHAPES if not number and draw(st.sampled_from(_FEW)) else SHAPES[:-1]
        found.append(
            {
                "atom": f"t{number}",
                "role": draw(st.sampled_from(roles)),
                "dtype": "float32" if is_small else draw(st.sampled_from(["float32", *ALSO])),
                "shape": draw(st.sampled_from(shapes)),
            }
        )
    return found


@st.composite
def groups(draw: st.DrawFn, found: list[dict[str, Any]]) -> list[list[int]]:
    """Return the tensors that have gradients in one or two groups, the second of which may be empty."""
    trained = [number for number, one in enumerate(found) if one["role"] == "gradient"]
    if draw(st.booleans()):
        return [trained]
    second = draw(st.lists(st.sampled_from(trained), unique=True))
    return [[number for number in trained if number not in second], sorted(second)]


@st.composite
def steps(draw: st.DrawFn, found: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return a step: options of its groups, whether it is skipped, and what there is of each tensor."""
    is_skipped = draw(st.sampled_from(_SOME))
    forms = []
    for one in found:
        if one["role"] != "gradient":
            forms.append(draw(st.sampled_from(["absent", "dense"])))
        elif is_skipped:
            forms.append("absent")
        else:
            has_rows = one["shape"] not in ([], [70_000])
            some = ["dense", "absent", "zeros", "places", "mostly-zeros", *(["rows", "rows"] * has_rows)]
            forms.append(draw(st.sampled_from(some)))
    rates = draw(st.lists(st.integers(0, RATES - 1), min_size=count, max_size=count))
    return {"skipped": is_skipped, "rates": rates, "forms": forms}


@st.composite
def epochs(draw: st.DrawFn, found: list[dict[str, Any]], count: int) -> dict[str, Any]:
    """Return an epoch: pieces of ranks, steps, how each rank puts them in batches, and how it ends."""
    ranks = draw(st.sampled_from([1, 2, 3]))
    made = [draw(steps(found, count)) for _ in range(draw(st.sampled_from([1, 2, 3, 4, 5])))]
    # Tensors are cut along their first dimension, into parts that go to the ranks in turn.
    parts = draw(st.lists(st.integers(1, 3), min_size=len(found), max_size=len(found)))
    sizes = st.lists(st.sampled_from([1, 1, 2, 3]), min_size=len(made), max_size=len(made))
    # Where ranks end their batches together, more of the steps are recovered.
    together = draw(sizes) if draw(st.sampled_from([True, True, False])) else None
    batches = [draw(sizes) if together is None else together for _ in range(ranks)]
    return {
        "ranks": ranks,
        "parts": parts,
        "first_rank": draw(st.integers(0, ranks - 1)),
        "exactness": draw(st.sampled_from(["bitwise", "bitwise", "tolerance", "lossy"])),
        "profile": draw(st.sampled_from([{}, {}, {"implementation": "fused"}])),
        "steps": made,
        "batches": batches,
        "order": draw(st.lists(st.integers(0, ranks - 1), max_size=6)),
        "values": draw(st.integers(0, VALUES - 1)),
        "sums_every": draw(st.sampled_from([1, 2, 3])),
        "behind": draw(st.sampled_from(_SOME)),
        "end": draw(ends(ranks)),
    }


@st.composite
def ends(draw: st.DrawFn, ranks: int) -> dict[str, Any]:
    """Return how an epoch ends, and what is tried behind that."""
    return {
        # Batches of each rank that never got their names.
        "lost": draw(st.lists(st.sampled_from([0, 0, 0, 1, 2]), min_size=ranks, max_size=ranks)),
        "torn": draw(st.sampled_from([None, None, *range(ranks)])),
        # A batch of a rank is gone: of this epoch, the first or the second, or the last that counts of the one before.
        "gap": draw(
            st.sampled_from([None] * 6 + [[n, rank] for n in (1, -1, -1) for rank in range(ranks)] + [[0, 0]])
        ),
        "debris": draw(st.booleans()),
        "killed": draw(st.sampled_from([False] * 9 + [True])),
        "taken": draw(st.sampled_from(_SOME)),
        "zombie": draw(st.booleans()),
        "late": draw(st.sampled_from(_SOME)),
        "checkpoint": draw(st.sampled_from(_SOME)),
        "pruned": draw(st.booleans()),
    }


@st.composite
def log_plans(draw: st.DrawFn) -> dict[str, Any]:
    """Return the life of a log: what its epochs log, how each of them ends, and from which checkpoints it goes on."""
    is_small = not draw(st.sampled_from(_RARELY))
    found = draw(tensors(is_small=is_small))
    of_groups = draw(groups(found))
    return {
        "optimizer": "ucp.sgd" if is_small else "example.adam",
        "tensors": found,
        "groups": of_groups,
        "seed": draw(st.integers(0, 1000)),
        "epochs": [draw(epochs(found, len(of_groups))) for _ in range(draw(st.sampled_from([1, 2, 3, 4])))],
    }
