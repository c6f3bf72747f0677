"""Making a life of a log that fails smaller: what a plan has is left out or made plain, as long as it still fails.

Hypothesis shrinks what it has drawn, by its bytes, and nothing of the lives that are tried first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

from ucp_conformance.log_plans import QUIET

__all__ = ["shrunk"]

Plan = dict[str, Any]
_PLAIN: Final[dict[str, Any]] = {
    "exactness": "bitwise", "profile": {}, "order": [], "values": 0, "sums_every": 9, "behind": False, "first_rank": 0,
}  # fmt: skip


def shrunk(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """Return the smallest plan that was found to fail; ``fails`` says False when there is no time left."""
    seen: list[Plan] = [plan]
    while True:
        for smaller in _smaller(plan):
            if smaller not in seen:
                seen.append(smaller)
                if fails(smaller):
                    plan = smaller
                    break
        else:
            return plan


def _smaller(plan: Plan) -> Iterator[Plan]:
    """Yield plans with less in them, those first that have least."""
    epochs = plan["epochs"]
    for count in range(1, len(epochs)):
        yield plan | {"epochs": epochs[:count]}
    for number in range(len(epochs) - 1):
        yield plan | {"epochs": epochs[:number] + epochs[number + 1 :]}
    for tensor in range(len(plan["tensors"]) - 1, 0, -1):
        yield _without_tensor(plan, tensor)
    if len(plan["groups"]) > 1:
        yield _in_one_group(plan)
    for number, epoch in enumerate(epochs):
        for one in _smaller_epochs(epoch):
            yield plan | {"epochs": [*epochs[:number], one, *epochs[number + 1 :]]}
    if plan["seed"]:
        yield plan | {"seed": 0}
    if plan["optimizer"] != "ucp.sgd" and all(one["dtype"] == "float32" for one in plan["tensors"]):
        yield plan | {"optimizer": "ucp.sgd"}
    for tensor, one in enumerate(plan["tensors"]):
        for change in ({"dtype": "float32"}, {"shape": [3]}, {"role": "gradient"}):
            has_rows = any(step["forms"][tensor] == "rows" for epoch in epochs for step in epoch["steps"])
            if change.items() <= one.items() or ("shape" in change and has_rows and not one["shape"]):
                continue
            changed = deepcopy(plan)
            changed["tensors"][tensor] |= change
            if one["role"] != "gradient" and "role" in change:
                changed["groups"][0] = sorted([*changed["groups"][0], tensor])
                # A skipped step has no gradients.
                for epoch in changed["epochs"]:
                    for step in epoch["steps"]:
                        step["forms"][tensor] = "absent" if step["skipped"] else step["forms"][tensor]
            yield changed


def _smaller_epochs(epoch: Plan) -> Iterator[Plan]:
    steps = epoch["steps"]
    for count in range(1, len(steps)):
        yield epoch | {"steps": steps[:count]}
    for number in range(len(steps) - 1):
        yield epoch | {"steps": steps[:number] + steps[number + 1 :]}
    for name, plain in QUIET.items():
        quiet = [0] * epoch["ranks"] if name == "lost" else plain
        if epoch["end"][name] != quiet:
            yield epoch | {"end": epoch["end"] | {name: quiet}}
    for ranks in range(1, epoch["ranks"]):
        yield _with_ranks(epoch, ranks)
    for name, plain in _PLAIN.items():
        if epoch[name] != plain:
            yield epoch | {name: plain}
    if set(epoch["parts"]) != {1}:
        yield epoch | {"parts": [1] * len(epoch["parts"])}
    for size in (len(steps), 1):
        # All steps in one batch, or one in each.
        batches = [[size] * (1 if size > 1 else len(steps))] * epoch["ranks"]
        if epoch["batches"] != batches:
            yield epoch | {"batches": batches}
    for number, step in enumerate(steps):
        for one in _smaller_steps(step):
            yield epoch | {"steps": [*steps[:number], one, *steps[number + 1 :]]}


def _smaller_steps(step: Plan) -> Iterator[Plan]:
    if any(step["rates"]):
        yield step | {"rates": [0] * len(step["rates"])}
    if step["skipped"]:
        yield step | {"skipped": False}
    for tensor, form in enumerate(step["forms"]):
        for plain in ("absent", "dense"):
            if form == plain or (plain == "dense" and (step["skipped"] or form == "absent")):
                continue
            yield step | {"forms": [*step["forms"][:tensor], plain, *step["forms"][tensor + 1 :]]}


def _with_ranks(epoch: Plan, ranks: int) -> Plan:
    end = epoch["end"]
    is_there = {
        "torn": end["torn"] is not None and end["torn"] < ranks,
        "gap": end["gap"] and end["gap"][1] < ranks,
    }
    return epoch | {
        "ranks": ranks,
        "first_rank": min(epoch["first_rank"], ranks - 1),
        "batches": epoch["batches"][:ranks],
        "order": [rank for rank in epoch["order"] if rank < ranks],
        "end": end
        | {"lost": end["lost"][:ranks]}
        | {name: end[name] if there else None for name, there in is_there.items()},
    }


def _without_tensor(plan: Plan, tensor: int) -> Plan:
    found = deepcopy(plan)
    del found["tensors"][tensor]
    found["groups"] = [[n - (n > tensor) for n in group if n != tensor] for group in plan["groups"]]
    for epoch in found["epochs"]:
        del epoch["parts"][tensor]
        for step in epoch["steps"]:
            del step["forms"][tensor]
    return found


def _in_one_group(plan: Plan) -> Plan:
    found = deepcopy(plan)
    found["groups"] = [sorted(tensor for group in plan["groups"] for tensor in group)]
    for epoch in found["epochs"]:
        for step in epoch["steps"]:
            step["rates"] = step["rates"][:1]
    return found
