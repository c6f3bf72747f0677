"""The placement primitives, as plain data (SPEC section 12).

`Layout` checks how they fit together and their mesh; `lower` checks what depends on extents.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

__all__ = [
    "BlockRule",
    "Blocks",
    "Concat",
    "Flatten",
    "Join",
    "LocalOnly",
    "Only",
    "Pad",
    "Partial",
    "Permute",
    "Reduce",
    "Resize",
    "Rule",
    "RuleName",
    "Scale",
    "Shard",
    "Step",
    "View",
]

RuleName = Literal["ceil", "even", "balanced"]
Rule = RuleName | tuple[int, ...]
Reduce = Literal["mean", "sum", "max"]
Resize = Literal["refuse", "keep"]


@dataclass(frozen=True, slots=True)
class Shard:
    """Split ``dim`` over the ``n`` positions of ``axis``; position ``i`` keeps the ``i``-th part.

    ``rule`` says how an extent ``d`` splits: ``ceil`` in parts of ``ceil(d / n)``, the later ones shorter or
    empty (torch.chunk); ``even`` in equal parts, an error where ``n`` does not divide ``d``; ``balanced``
    with one more for the first ``d mod n`` parts (numpy.array_split); or explicit sizes, zeros legal,
    which sum to ``d``. ``d`` is the extent as it stands, so that shards of one dim nest.

    >>> report = ucp.save("run.ucp", {"w": np.arange(5)})
    >>> layout = ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), (ucp.Shard("tp", 0),))
    >>> with ucp.open("run.ucp") as ckpt:
    ...     [ckpt.read("w", layout=layout, coord={"tp": position}).tolist() for position in (0, 1)]
    [[0, 1, 2], [3, 4]]
    """

    axis: str
    dim: int
    rule: Rule = "ceil"


@dataclass(frozen=True, slots=True)
class BlockRule:
    """``count`` blocks whose sizes follow from the extent at each coordinate, by a rule of `Shard`."""

    rule: RuleName
    count: int


@dataclass(frozen=True, slots=True)
class Blocks:
    """Cut ``dim`` into blocks of ``sizes``; later steps on ``dim`` act inside each block.

    The results are concatenated along ``dim`` in block order. ``sizes`` sum to the extent as it stands, or
    are a rule that makes them of it, so that they may differ by coordinate. ``steps``, where given, has one
    entry per block: None leaves the block to the later steps; a tuple of shards of the same dim replaces
    them for that block, and the empty tuple replicates the block. Blocks of one dim do not nest; `Join` ends
    them.

    A fused weight of which query has 4 rows, key and value 2 each, of which each of two ranks has half:

    >>> report = ucp.save("run.ucp", {"qkv": np.arange(8)})
    >>> steps = (ucp.Blocks(0, (4, 2, 2)), ucp.Shard("tp", 0, "even"))
    >>> with ucp.open("run.ucp") as ckpt:
    ...     ckpt.read("qkv", layout=ucp.Layout(ucp.Mesh((ucp.MeshAxis("tp", 2),)), steps), coord={"tp": 1})
    array([2, 3, 5, 7])
    """

    dim: int
    sizes: tuple[int, ...] | BlockRule
    steps: tuple[tuple[Shard, ...] | None, ...] | None = None


@dataclass(frozen=True, slots=True)
class Join:
    """End the blocks of ``dim``: later steps act on the concatenated dim as one."""

    dim: int


@dataclass(frozen=True, slots=True)
class Flatten:
    """Make the local tensor as it stands 1-D, row-major; later steps see that one dim as dim 0.

    ZeRO: each of two ranks has half of the elements, whatever the shape is.

    >>> report = ucp.save("run.ucp", {"w": np.arange(6).reshape(3, 2)})
    >>> steps = (ucp.Flatten(), ucp.Shard("dp", 0, "even"))
    >>> with ucp.open("run.ucp") as ckpt:
    ...     ckpt.read("w", layout=ucp.Layout(ucp.Mesh((ucp.MeshAxis("dp", 2),)), steps), coord={"dp": 1})
    array([3, 4, 5])
    """


@dataclass(frozen=True, slots=True)
class Only:
    """Present at these positions of ``axis`` alone, ascending; others hold nothing, not an empty tensor.

    A layer that only the second of two pipeline stages has:

    >>> mesh = ucp.Mesh((ucp.MeshAxis("pp", 2),))
    >>> layout = ucp.Layout(mesh, (ucp.Only("pp", (1,)),))
    >>> [layout.holds(rank) for rank in (0, 1)]
    [False, True]
    """

    axis: str
    coordinates: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class View:
    """See the tensor in another shape of as many elements, row-major; before any step that splits or pads.

    After a `Permute` the new extents must follow the boundaries of runs of dims that are still in order.
    """

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Permute:
    """Dim ``k`` becomes what was dim ``order[k]``; before any step that splits or pads."""

    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pad:
    """Pad ``dim`` at its end, ``to`` an extent or to a ``multiple``: exactly one of them.

    The padding is in the local tensors alone: no piece maps to it, and it is zero on extraction.
    """

    dim: int
    to: int | None = None
    multiple: int | None = None


@dataclass(frozen=True, slots=True)
class Concat:
    """The flat local tensor lies in a longer buffer, ``group``, which later steps see instead of it.

    Where it lies is no part of the layout, which all tensors of the buffer share: see `BufferPlace`.
    """

    group: str


@dataclass(frozen=True, slots=True)
class Partial:
    """The positions of ``axis`` hold contributions, which are reduced before anything is stored.

    ``reduce`` is the same for all partial axes of a layout. For sources alone.
    """

    axis: str
    reduce: Reduce


@dataclass(frozen=True, slots=True)
class Scale:
    """Local value = ``factor`` * logical value. Documents and memories have powers of two alone."""

    factor: Fraction

    @property
    def exponent(self) -> int | None:
        """``k`` where the factor is ``2**k``, else None."""
        above, below = self.factor.numerator, self.factor.denominator
        if above < 1 or above.bit_count() != 1 or below.bit_count() != 1:
            return None
        return above.bit_length() - below.bit_length()


@dataclass(frozen=True, slots=True)
class LocalOnly:
    """Every coordinate has its own entry: dim 0 counts the coordinates of the mesh, in their order.

    The local tensor has the other dims. The only step of its layout; entries are never merged. ``resize``
    says who gets which under another mesh: nobody, or, where it has as many coordinates, ``keep``, the same.
    """

    resize: Resize = "refuse"


Step = Shard | Blocks | Join | Flatten | Only | View | Permute | Pad | Concat | Partial | Scale | LocalOnly
