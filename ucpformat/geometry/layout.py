"""Layouts: placement primitives applied in order over a mesh (SPEC section 12).

`Layout` checks its steps, and refuses with a JSON pointer relative to the layout. What depends on extents
(does it divide, do sizes sum) is checked by lowering.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from ucpformat.errors import UcpError, error
from ucpformat.geometry.box import is_extents
from ucpformat.geometry.mesh import Axis, Mesh, RaggedAxis
from ucpformat.geometry.piece import MAX_PIECES
from ucpformat.geometry.steps import (
    BlockRule,
    Blocks,
    Concat,
    Flatten,
    Join,
    LocalOnly,
    Only,
    Pad,
    Partial,
    Permute,
    Reduce,
    Resize,
    Rule,
    RuleName,
    Scale,
    Shard,
    Step,
    View,
)
from ucpformat.html_facts import html_facts

__all__ = ["Layout"]


@dataclass(frozen=True, slots=True)
class Layout:
    """A mesh and the steps that spread a tensor over it. Axes that no step mentions replicate.

    An axis is used once: by one `Shard` or `Only` or `Partial`. Blocks with steps of their own may use an
    axis once each, and a later `Shard` of their dim may use it for the blocks that have none. A ragged axis
    is used after the axis that decides its size, where both are.

    Raises UCP-E-LAYOUT, at a JSON pointer relative to the layout (``/steps/2/sizes``); UCP-E-LIMIT where blocks
    by a rule are more than `MAX_PIECES`.

    >>> mesh = ucp.Mesh((ucp.MeshAxis("dp", 2), ucp.MeshAxis("tp", 4)))
    >>> layout = ucp.Layout(mesh, (ucp.Shard("tp", 0, "even"),))  # rows over tp, the same on both ranks of dp
    >>> layout.mesh.size
    8
    """

    mesh: Mesh
    steps: tuple[Step, ...] = ()

    def _repr_html_(self) -> str:
        axes = " x ".join(f"{axis.name} {axis.size}" for axis in self.mesh.axes) or "one rank"
        return html_facts({"mesh": axes}, ("step",), [(step,) for step in self.steps])

    def __post_init__(self) -> None:
        checker = _Checker(self.mesh)
        for number, step in enumerate(self.steps):
            checker.check(step, f"/steps/{number}")
        alone = [number for number, step in enumerate(self.steps) if isinstance(step, LocalOnly)]
        if len(self.steps) > 1 and alone:
            raise _refusal("a local tensor has no other steps: leave them out", f"/steps/{alone[0]}")

    @property
    def entries(self) -> LocalOnly | None:
        """The step that gives every coordinate an entry of its own, where there is one.

        >>> ucp.Layout(mesh, (ucp.layouts.LocalOnly(),)).entries is not None, layout.entries
        (True, None)
        """
        step = self.steps[0] if self.steps else None
        return step if isinstance(step, LocalOnly) else None

    def axes_of_buffer(self, concat: int) -> frozenset[str]:
        """Return the axes along which the buffer of the step at ``concat`` is one, and lies alike.

        Those are the axes over which later steps split it, and those of contributions.

        >>> flat = (ucp.Flatten(), ucp.layouts.Concat("grads"), ucp.Shard("dp", 0, "even"))
        >>> ucp.Layout(mesh, flat).axes_of_buffer(1)
        frozenset({'dp'})
        """
        found: list[Step] = [step for step in self.steps if isinstance(step, Partial)]
        for step in self.steps[concat + 1 :]:
            found.append(step)
            if isinstance(step, Blocks):
                found.extend(itertools.chain.from_iterable(own or () for own in step.steps or ()))
        return frozenset(step.axis for step in found if isinstance(step, Shard | Partial))

    @property
    def work(self) -> int:
        """An upper bound, known from the steps alone, of the ranges that all coordinates of the mesh hold together.

        Example:
            >>> mesh = ucp.Mesh((ucp.MeshAxis("dp", 8),))
            >>> ucp.Layout(mesh, (ucp.Blocks(0, (3, 3)), ucp.Shard("dp", 0))).work
            16
        """
        sizes = (step.sizes for step in self.steps if isinstance(step, Blocks))
        counts = (size.count if isinstance(size, BlockRule) else len(size) for size in sizes)
        return self.mesh.size * math.prod(counts)

    def holds(self, rank: int) -> bool:
        """Return whether ``rank`` is in the mesh and no `Only` leaves it out; its part may still be empty.

        >>> first = ucp.Layout(mesh, (ucp.Only("dp", (0,)),))
        >>> first.holds(3), first.holds(4)
        (True, False)
        """
        coordinate = self.mesh.find(rank)
        if coordinate is None:
            return False
        position = {axis.name: at for axis, at in zip(self.mesh.axes, coordinate, strict=True)}
        return all(position[step.axis] in step.coordinates for step in self.steps if isinstance(step, Only))


@dataclass(frozen=True, slots=True)
class _OpenBlocks:
    """The blocks of a dim until Join or Flatten: axes of their own steps, and whether a block has none."""

    own_axes: frozenset[str]
    has_free_block: bool


class _Checker:
    """Walks the steps in order and remembers what the next one must respect."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.used: set[str] = set()
        self.blocks: dict[int, _OpenBlocks] = {}
        self.reduce: Reduce | None = None
        self.is_divided = False
        self.is_flat = False
        self.has_buffer = False
        self.has_factor = False

    def check(self, step: Step, at: str) -> None:
        match step:
            case View() | Permute():
                self._reinterpretation(step, at)
            case Shard():
                self._shard(step, at)
            case Blocks():
                self._blocks(step, at)
            case Join():
                self._dim(step.dim, at)
                if step.dim not in self.blocks:
                    raise _refusal(f"dim {step.dim} has no blocks to join", at)
                self._end_blocks(step.dim)
            case Pad():
                self._pad(step, at)
            case Flatten():
                self._flatten(at)
            case Concat():
                self._concat(step, at)
            case Only():
                self._only(step, at)
            case Partial():
                self._partial(step, at)
            case Scale():
                if not isinstance(step.factor, Fraction) or step.factor == 0:
                    raise _refusal("a factor is a fraction other than 0", f"{at}/factor")
                if self.has_factor:
                    raise _refusal("a layout has one factor: multiply them", at)
                self.has_factor = True
            case LocalOnly():
                if step.resize not in get_args(Resize):
                    raise _refusal(f"nothing is called {step.resize!r} here", f"{at}/resize")
            case _:
                raise _refusal(f"{step!r} is no placement step", at)

    def _reinterpretation(self, step: View | Permute, at: str) -> None:
        if self.is_divided:
            raise _refusal("view and permute come before every step that splits, pads or flattens", at)
        if isinstance(step, View):
            if not is_extents(step.shape):
                raise _refusal("a shape is integers >= 0", f"{at}/shape")
        elif not is_extents(step.order) or sorted(step.order) != list(range(len(step.order))):
            raise _refusal("an order names every dim once", f"{at}/order")

    def _shard(self, step: Shard, at: str) -> None:
        self._dim(step.dim, at)
        blocks = self.blocks.get(step.dim)
        if blocks is not None and not blocks.has_free_block:
            raise _refusal(
                f"every block of dim {step.dim} has steps of its own: nothing is left to split", at
            )
        self._rule(step.rule, self._find(step.axis, at, self._taken(step.dim)), at)
        self.used.add(step.axis)

    def _blocks(self, step: Blocks, at: str) -> None:
        self._dim(step.dim, at)
        self._no_blocks(step.dim, at)
        if isinstance(step.sizes, BlockRule):
            _check_name(step.sizes.rule, at)
            if type(step.sizes.count) is not int or step.sizes.count < 1:
                raise _refusal("the count of blocks is an integer >= 1", f"{at}/count")
            if step.sizes.count > MAX_PIECES:
                raise error(
                    "UCP-E-LIMIT", f"{step.sizes.count} blocks are more than {MAX_PIECES}", at=f"{at}/count"
                )
            count = step.sizes.count
        elif not is_extents(step.sizes) or not step.sizes:
            raise _refusal("block sizes are one or more integers >= 0", f"{at}/sizes")
        else:
            count = len(step.sizes)
        own_steps = step.steps if step.steps is not None else (None,)
        if step.steps is not None and len(own_steps) != count:
            raise _refusal(f"{len(own_steps)} entries for {count} blocks: one each", f"{at}/steps")
        axes: set[str] = set()
        for number, shards in enumerate(own_steps):
            axes |= self._own_steps(step.dim, shards or (), f"{at}/steps/{number}")
        self.blocks[step.dim] = _OpenBlocks(frozenset(axes), None in own_steps)

    def _own_steps(self, dim: int, shards: tuple[Shard, ...], at: str) -> set[str]:
        axes: set[str] = set()
        for number, shard in enumerate(shards):
            here = f"{at}/{number}"
            if not isinstance(shard, Shard) or shard.dim != dim:
                raise _refusal(f"a block of dim {dim} may only carry shards of dim {dim}", here)
            self._rule(shard.rule, self._find(shard.axis, here, axes | self._taken()), here)
            axes.add(shard.axis)
        return axes

    def _pad(self, step: Pad, at: str) -> None:
        self._dim(step.dim, at)
        self._no_blocks(step.dim, at)
        given = [value for value in (step.to, step.multiple) if value is not None]
        if len(given) != 1 or not is_extents((*given,)) or step.multiple == 0:
            raise _refusal("padding is to an extent >= 0 or to a multiple >= 1: one of them", at)

    def _flatten(self, at: str) -> None:
        if self.is_flat:
            raise _refusal("the tensor is flat already: leave this step out", at)
        for dim in tuple(self.blocks):
            self._end_blocks(dim)
        self.is_flat = self.is_divided = True

    def _concat(self, step: Concat, at: str) -> None:
        if not self.is_flat or self.has_buffer:
            raise _refusal("a tensor is put into one buffer, once, after it is flattened", at)
        if not isinstance(step.group, str) or not step.group:
            raise _refusal("a buffer has a name", f"{at}/group")
        self._no_blocks(0, at)
        self.has_buffer = True

    def _only(self, step: Only, at: str) -> None:
        axis = self._find(step.axis, at, self._taken())
        size = min(axis.sizes) if isinstance(axis, RaggedAxis) else axis.size
        positions = step.coordinates
        if not is_extents(positions) or not positions or positions[-1] >= size:
            raise _refusal(f"name one or more positions below {size}", f"{at}/coordinates")
        if list(positions) != sorted(set(positions)):
            raise _refusal("positions must ascend, each named once", f"{at}/coordinates")
        self.used.add(step.axis)

    def _partial(self, step: Partial, at: str) -> None:
        if isinstance(self._find(step.axis, at, self._taken()), RaggedAxis):
            raise _refusal(
                f"the copies along the ragged axis {step.axis!r} are not equally many", f"{at}/axis"
            )
        if step.reduce not in get_args(Reduce):
            raise _refusal(f"no reduction is called {step.reduce!r}", f"{at}/reduce")
        if self.reduce not in (None, step.reduce):
            raise _refusal(
                f"an earlier step reduces by {self.reduce}: the order would matter", f"{at}/reduce"
            )
        self.reduce = step.reduce
        self.used.add(step.axis)

    def _taken(self, dim: int | None = None) -> set[str]:
        """Return the axes a step may not use; one on ``dim`` shares those of its blocks' own steps."""
        return self.used.union(*(blocks.own_axes for other, blocks in self.blocks.items() if other != dim))

    def _find(self, axis: str, at: str, taken: set[str]) -> Axis:
        index = self.mesh.axis_index(axis)
        if index is None:
            raise _refusal(f"the mesh has no axis {axis!r}", f"{at}/axis")
        if axis in taken:
            raise _refusal(f"axis {axis!r} is used by an earlier step", f"{at}/axis")
        # Parts of unequal number, split alike further on, would leave gaps.
        for other in self.mesh.axes:
            if isinstance(other, RaggedAxis) and other.by == axis and other.name in taken | self._taken():
                raise _refusal(f"use {axis!r} before {other.name!r}, whose size it decides", f"{at}/axis")
        return self.mesh.axes[index]

    def _rule(self, rule: Rule, axis: Axis, at: str) -> None:
        if isinstance(rule, str):
            _check_name(rule, at)
        elif isinstance(axis, RaggedAxis):
            raise _refusal("sizes need an axis that has the same size everywhere: use a rule", f"{at}/sizes")
        elif not is_extents(rule) or len(rule) != axis.size:
            raise _refusal(f"sizes are {axis.size} integers >= 0, one for each position", f"{at}/sizes")

    def _dim(self, dim: int, at: str) -> None:
        if not is_extents((dim,)):
            raise _refusal(f"{dim!r} is not a dim: count from 0", f"{at}/dim")
        if self.is_flat and dim != 0:
            raise _refusal("a flat tensor has dim 0 alone", f"{at}/dim")
        self.is_divided = True

    def _no_blocks(self, dim: int, at: str) -> None:
        if dim in self.blocks:
            raise _refusal(f"dim {dim} is in blocks already: join them first", at)

    def _end_blocks(self, dim: int) -> None:
        self.used |= self.blocks.pop(dim).own_axes


def _check_name(rule: str, at: str) -> None:
    if rule not in get_args(RuleName):
        raise _refusal(f"no rule is called {rule!r}", f"{at}/rule")


def _refusal(message: str, at: str) -> UcpError:
    return error("UCP-E-LAYOUT", message, at=at)
