"""Update logs of jobs with error feedback: residuals that are stored, that are not, and that are stored in part."""

from __future__ import annotations

from collections.abc import Iterator

from generate.bad_logs import bad
from generate.cases import Case
from generate.log_cases import (
    CHECKPOINT,
    LATER,
    OPTIONS,
    TENSORS,
    changed,
    good,
    of_two,
    state,
    then,
    without,
)
from generate.logs import LogDraft, checkpoint, dense, sparse, step

__all__ = ["residual_cases"]

LAST_KEY = "batches/1/0/7.batch"


def with_residuals(draft: LogDraft) -> None:
    """Make a residual of the tensor ``mean``."""
    for document in draft.epochs.values():
        document["tensors"] = [
            {**tensor, "role": "residual"} if tensor["atom"] == "mean" else tensor for tensor in TENSORS
        ]


def residual_cases() -> Iterator[Case]:
    """Yield all of them, the good ones first."""
    yield good(
        "residuals", "Residuals that are stored behind the last step", ("UCP-D-166", "UCP-R-046"), changed(with_residuals),
    )  # fmt: skip
    yield good(
        "residuals-not-stored", "Residuals that are not stored behind the last step", ("UCP-R-046",),
        changed(with_residuals, then(without(LAST_KEY))),
    )  # fmt: skip
    yield good(
        "residuals-of-checkpoints", "Residuals of checkpoints, one of them the last state", ("UCP-R-046",),
        changed(
            with_residuals, then(without(LAST_KEY)),
            lambda draft: draft.checkpoints.update({"step-7.ucp": checkpoint(state(5), 7, epoch=1)}),
        ),
        checkpoints=[CHECKPOINT, "step-7.ucp"],
    )  # fmt: skip
    yield bad(
        "step-residual-sparse", "A residual that is not dense", ("UCP-D-166",), _sparse, at=[f"{LAST_KEY}#/steps/0/entries/0"],
    )  # fmt: skip
    yield bad(
        "ranks-some-residuals", "A residual of some pieces", ("UCP-D-167",), _divided, at=["batches/0/0/2.batch#/steps/1"],
        refused="UCP-E-LOG", also=True,
    )  # fmt: skip


def _sparse(draft: LogDraft) -> None:
    with_residuals(draft)
    draft.batches[1, 0, 7] = [step(sparse(1, [0], bytes(4)), options=LATER)]


def _divided(draft: LogDraft) -> None:
    """Divide the residual between two ranks, of which the first alone has an entry of step 3."""
    with_residuals(draft)
    pieces = [dict(piece) for piece in draft.epochs[0]["pieces"]]
    pieces[2] |= {"shape": [1]}
    pieces.append({"tensor": 1, "rank": 1, "offset": [1], "shape": [1]})
    draft.epochs[0]["pieces"] = pieces
    own = [one for one in of_two(3)[0] if one["piece"] != 2]
    draft.batches[0, 0, 2] = [
        step(options=OPTIONS, skipped=True),
        step(*own, dense(2, bytes(4)), options=LATER),
    ]
