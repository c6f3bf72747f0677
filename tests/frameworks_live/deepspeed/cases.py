"""What the DeepSpeed tests save: stage, data type and options by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True)
class Case:
    """One DeepSpeed configuration; ``zero`` and ``config`` are added to DeepSpeed's own."""

    stage: int
    dtype: Literal["float32", "bfloat16", "float16"]
    groups: int = 2
    frozen: bool = True
    round_robin: bool = False
    same_data: bool = False
    rule: Literal["adamw", "sgd"] = "adamw"
    zero: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    degrees: tuple[int, ...] = (2, 3, 4)

    @property
    def has_options(self) -> bool:
        """Whether DeepSpeed stores the options of parameter groups."""
        return not self.zero.get("elastic_checkpoint")

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the optimizer's states that have the shape of the parameter."""
        return ("momentum_buffer",) if self.rule == "sgd" else ("exp_avg", "exp_avg_sq")

    def optimizer(self, groups: list[dict[str, Any]]) -> Any:
        import torch

        if self.rule == "sgd":
            plain = [{key: value for key, value in group.items() if key != "betas"} for group in groups]
            return torch.optim.SGD(plain, momentum=0.9)
        return torch.optim.AdamW(groups)


# A norm is summed part by part: with the same data on all ranks and no clipping, order of the buffer changes nothing.
UNCLIPPED = {"gradient_clipping": 0.0}

CASES: dict[str, Case] = {
    "z1-bf16": Case(1, "bfloat16"),
    "z2-bf16": Case(2, "bfloat16"),
    "z3-bf16": Case(3, "bfloat16"),
    "z1-fp32": Case(1, "float32", groups=1, frozen=False),
    "z2-fp32": Case(2, "float32"),
    "z3-fp32": Case(3, "float32"),
    "z0-fp32": Case(0, "float32", frozen=False),
    "z0-fp32-frozen": Case(0, "float32", degrees=(2,)),
    "z0-bf16": Case(0, "bfloat16", frozen=False),
    "z0-fp16": Case(0, "float16", frozen=False),
    "z1-bf16-optimizer": Case(1, "bfloat16", config={"data_types": {"grad_accum_dtype": "fp32"}}),
    "z1-round-robin": Case(1, "bfloat16", round_robin=True, same_data=True, config=UNCLIPPED),
    "z1-plain-order": Case(1, "bfloat16", same_data=True, config=UNCLIPPED),
    "z3-sub-groups": Case(3, "bfloat16", zero={"sub_group_size": 400}),
    "z1-aligned": Case(1, "bfloat16", zero={"parameter_alignment": True}),
    "z2-sgd": Case(2, "bfloat16", rule="sgd"),
    "z2-elastic": Case(2, "bfloat16", zero={"elastic_checkpoint": True}),
    "z1-fp16": Case(1, "float16"),
    "z2-fp16": Case(2, "float16", degrees=(3,)),
    "z3-fp16": Case(3, "float16"),
    # ZeRO++: weights held a second time in groups of two ranks, which files show nothing of.
    "z3-hpz": Case(3, "bfloat16", zero={"zero_hpz_partition_size": 2}, degrees=(4,)),
}

TARGETS: dict[str, Case] = {
    "z1-fp32-all": Case(1, "float32", frozen=False),
    "z3-sgd": Case(3, "bfloat16", rule="sgd"),
    "z1-fp16-all": Case(1, "float16", frozen=False),
    "z0-fp16-frozen": Case(0, "float16"),
    "z0-bf16-frozen": Case(0, "bfloat16"),
}
"""What is only ever loaded into."""

ALL_CASES = CASES | TARGETS
DEGREES = (2, 3, 4)
