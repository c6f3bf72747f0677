"""Parameter groups as Megatron's optimizers keep them, and ours: which parameter is in which, and how many steps.

Megatron stores groups without their parameters: it puts a parameter into a group by a rule, and knows a group again
by four of its options (megatron-core 0.16.1, optimizer/__init__.py ``get_standard_config_overrides``,
optimizer/optimizer.py ``param_group_identifier_keys``). Steps are counted once for all parameters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ucpformat.model.state import Optimizer, ParameterGroup
from ucpformat.tensor_files.stand_ins import TensorValue
from ucpformat.tensor_files.tagged import encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.geometry import Box

__all__ = [
    "EXPERTS_OWN",
    "IDENTIFIERS",
    "OPTIMIZER",
    "STEP",
    "Number",
    "Parameter",
    "decays",
    "is_expert_name",
    "optimizer_of",
    "stacked_dims",
    "stored_groups",
]

OPTIMIZER: Final = "optim"
"""What an optimizer of Megatron's is called here: chained ones are one."""
STEP: Final = "step"
EXPERTS_OWN: Final = "is_expert_parallel"
IDENTIFIERS: Final[Mapping[str, float | bool]] = {
    "wd_mult": 1.0,
    "lr_mult": 1.0,
    EXPERTS_OWN: False,
    "is_decoupled_lr": False,
}
"""The options by which Megatron knows a group again, and what they usually are."""

_STACKED_LAYERS: Final = re.compile(r"(?:.*\.)?layers\.(?!\d+\.).+", re.DOTALL)
_STACKED_EXPERTS: Final = re.compile(r".*\.experts\.experts\.(?!\d+\.).+", re.DOTALL)
_EXPERT: Final = re.compile(r".*\.experts\..+", re.DOTALL)

_Options = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """An atom that an optimizer has states of: its name and its shape, stacked dims included."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A slot all of whose elements are one number."""

    number: float

    def __call__(self, box: Box, out: NDArray[Any]) -> None:
        """Fill ``out``."""
        out[...] = self.number


def stacked_dims(name: str) -> int:
    """Return how many dims ahead of a parameter's own count layers and experts, in keys of ``torch_dist``."""
    return (_STACKED_LAYERS.fullmatch(name) is not None) + (_STACKED_EXPERTS.fullmatch(name) is not None)


def is_expert_name(name: str) -> bool:
    """Return whether a parameter is of one expert, or of several that are stacked."""
    return _EXPERT.fullmatch(name) is not None


def decays(parameter: Parameter) -> bool:
    """Return whether a parameter decays by Megatron's standard rule: biases and vectors do not."""
    return len(parameter.shape) - stacked_dims(parameter.name) > 1 and not parameter.name.endswith(".bias")


def stored_groups(tree: object) -> list[tuple[_Options, float | None]] | None:
    """Return the groups of what ``common.pt`` has under ``optimizer``, each with the steps that it has taken.

    ``tree`` is of one optimizer or of several that are chained, of distributed ones and of those that do not shard.
    None where it is none of these.
    """
    if not isinstance(tree, Mapping):
        return None
    if tree and all(type(key) is int for key in tree):
        chained = [stored_groups(tree[key]) for key in sorted(tree)]
        return [
            group for of_optimizer in chained if of_optimizer is not None for group in of_optimizer
        ] or None
    inner = tree.get("optimizer", tree)
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    if not isinstance(groups, list) or not all(isinstance(group, Mapping) for group in groups):
        return None
    state = inner.get("state")
    common = _number(state.get("common_step")) if isinstance(state, Mapping) else None
    return [(group, common if (own := _number(group.get(STEP))) is None else own) for group in groups]


def optimizer_of(
    groups: Sequence[tuple[_Options, float | None]], parameters: Iterable[Parameter]
) -> tuple[Optimizer, dict[str, float]] | None:
    """Return one optimizer of all groups, with the parameters that Megatron's rule puts into each, and their steps.

    None where the rule leaves a parameter, or two groups for one: then nobody can say.
    """
    apart = any(options.get(EXPERTS_OWN) is True for options, _ in groups)
    members: list[list[str]] = [[] for _ in groups]
    steps: dict[str, float] = {}
    for parameter in parameters:
        expert = apart and is_expert_name(parameter.name)
        fitting = [
            place for place, (options, _) in enumerate(groups) if (options.get(EXPERTS_OWN) is True) == expert
        ]
        if len(fitting) > 1:
            fitting = [place for place in fitting if (_decay(groups[place][0]) != 0) == decays(parameter)]
        if len(fitting) != 1:
            return None
        members[fitting[0]].append(parameter.name)
        number = groups[fitting[0]][1]
        if number is not None:
            steps[parameter.name] = number
    return (
        Optimizer(
            tuple(
                ParameterGroup(
                    tuple(names),
                    {
                        str(key): encode(value, at=f"optimizer/{key}")
                        for key, value in options.items()
                        if key not in ("params", STEP)
                    },
                )
                for names, (options, _) in zip(members, groups, strict=True)
            )
        ),
        steps,
    )


def _decay(options: _Options) -> object:
    return options.get("wd_mult", options.get("pre_wd_mult", 1.0))


def _number(value: object) -> float | None:
    if isinstance(value, TensorValue):
        import numpy as np

        kinds = {"float32": "<f4", "float64": "<f8", "int64": "<i8", "int32": "<i4"}
        kind = kinds.get(value.dtype)
        return float(np.frombuffer(value.data, kind)[0]) if kind and value.shape in ((), (1,)) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
