"""Small tensor subclasses of the protocol that torchao's have, to be taken apart and put together."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Self

import torch


class Rounding(enum.Enum):
    NEAREST = 1
    STOCHASTIC = 2


@dataclass(frozen=True)
class Recipe:
    rounding: Rounding
    block: tuple[int, ...] = (4,)


class Scaled(torch.Tensor):
    """int8 codes of the shape of the whole, and one scale a row."""

    codes: torch.Tensor
    scale: torch.Tensor
    recipe: Recipe

    @staticmethod
    def __new__(cls, codes: torch.Tensor, scale: torch.Tensor, recipe: Recipe) -> Self:
        return torch.Tensor._make_wrapper_subclass(
            cls, codes.shape, strides=codes.stride(), dtype=torch.float32, device=codes.device
        )

    def __init__(self, codes: torch.Tensor, scale: torch.Tensor, recipe: Recipe) -> None:
        self.codes, self.scale, self.recipe = codes, scale, recipe

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["codes", "scale"], {"recipe": self.recipe, "dtype": self.dtype}

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, torch.Tensor], context: dict[str, Any], size: Any, stride: Any
    ) -> torch.Tensor:
        return cls(inner["codes"], inner["scale"], context["recipe"])

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        one, *more = args
        # A DTensor is made of a view of its local tensor.
        if func is torch.ops.aten.detach.default or (
            func is torch.ops.aten.view.default and list(more[0]) == list(one.shape)
        ):
            return cls(one.codes.detach(), one.scale.detach(), one.recipe)
        raise NotImplementedError(f"{func} of a Scaled")


class Twice(Scaled):
    """A subclass of parts one of which is a subclass again."""

    def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
        return ["whole"], {}

    @property
    def whole(self) -> Scaled:
        return Scaled(self.codes, self.scale, self.recipe)

    @classmethod
    def __tensor_unflatten__(
        cls, inner: dict[str, Any], context: dict[str, Any], size: Any, stride: Any
    ) -> torch.Tensor:
        one = inner["whole"]
        return cls(one.codes, one.scale, one.recipe)


def scaled(seed: int, kind: type[Scaled] = Scaled, rounding: Rounding = Rounding.NEAREST) -> Scaled:
    """One of 6 by 4."""
    torch.manual_seed(seed)
    return kind(torch.randint(-100, 100, (6, 4), dtype=torch.int8), torch.rand(6), Recipe(rounding))


def alike(left: Scaled, right: Scaled) -> bool:
    return (
        type(left) is type(right)
        and torch.equal(left.codes, right.codes)
        and torch.equal(left.scale, right.scale)
        and left.recipe == right.recipe
    )
