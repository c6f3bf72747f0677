"""Update logs that are damaged before, at and behind the checkpoints that a recovery begins with."""

from __future__ import annotations

from collections.abc import Iterator

from generate.cases import Case
from generate.log_cases import LATER, changed, log_case, of_two, state
from generate.logs import LogDraft, checkpoint, step

__all__ = ["damaged_log_cases"]


def damaged_log_cases() -> Iterator[Case]:
    """Yield logs of which a recovery is right all the same, or refused, by where the damage lies."""

    def before(draft: LogDraft) -> None:
        draft.checkpoints = {"b.ucp": checkpoint(state(3), 5, epoch=1)}
        draft.after.append(lambda files: files.pop("batches/0/0/2.batch"))

    yield log_case(
        "good/logs/older-damage", "A batch is missing in an epoch before that of the checkpoint", ("UCP-R-040",),
        changed(before), codes=["UCP-E-LOG"], at=["batches/0/0/2.batch"], checkpoints=["b.ucp"],
    )  # fmt: skip

    def behind(draft: LogDraft) -> None:
        draft.checkpoints = {
            f"step-{number}.ucp": checkpoint(state(number), number, epoch=1) for number in (4, 5, 6, 7)
        }
        draft.after.append(lambda files: files.update({"batches/1/0/4.batch": b"UCPBATCH" + bytes(99)}))

    for name, allow_loss, refused in (("refused", False, "UCP-E-LOG"), ("lost", True, None)):
        yield log_case(
            f"good/logs/damage-{name}", "A damaged batch that has the steps behind the checkpoint",
            ("UCP-R-040",), changed(behind), codes=["UCP-E-LOG"], at=["batches/1/0/4.batch"],
            checkpoints=["step-4.ucp", "step-5.ucp"], allow_loss=allow_loss, refused=refused,
        )  # fmt: skip
    yield log_case(
        "good/logs/damage-before", "A damaged batch of the checkpoint's own epoch that ends before it",
        ("UCP-R-039", "UCP-R-040"), changed(behind), codes=["UCP-E-LOG"], at=["batches/1/0/4.batch"],
        checkpoints=["step-6.ucp", "step-7.ucp"],
    )  # fmt: skip

    def gap_before(draft: LogDraft) -> None:
        draft.checkpoints = {
            "a.ucp": checkpoint(state(2), 2), "b.ucp": checkpoint(state(3), 3), "c.ucp": checkpoint(state(4), 4)
        }  # fmt: skip
        draft.after.append(lambda files: files.pop("batches/0/1/3.batch"))
        draft.batches.pop((0, 1, 4))
        draft.batches[0, 1, 5] = [step(*of_two(5)[1], options=LATER)]
        draft.batches[0, 1, 3] += [step(*of_two(4)[1])]

    yield log_case(
        "good/logs/gap-before", "A missing batch before, at and behind the states of checkpoints",
        ("UCP-R-039", "UCP-R-040"), changed(gap_before), codes=["UCP-E-LOG"], at=["batches/0/1/3.batch"],
        checkpoints=["a.ucp", "b.ucp", "c.ucp"],
    )  # fmt: skip
    yield log_case(
        "good/logs/loss-allowed", "A batch is missing, and its user says that steps may be lost", ("UCP-R-040",),
        changed(lambda draft: draft.after.append(lambda files: files.pop("batches/1/0/6.batch"))),
        codes=["UCP-E-LOG"], at=["batches/1/0/6.batch"], allow_loss=True,
    )  # fmt: skip
