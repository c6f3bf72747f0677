"""What AutoTP does to a weight, as steps (SPEC appendix A).

Widths per rank are DeepSpeed's to choose (by heads, by grain) and are given here; see ``module_inject/tp_shard.py``.
Sources, DeepSpeed 0.19.8: ``module_inject/fusedqkv_utils.py`` and ``module_inject/layers.py``. A fused weight whose
sub-parameters are each split is `ucpformat.geometry.sub_parameter_steps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ucpformat.errors import error
from ucpformat.geometry import Blocks, Join, Permute, Scale, Shard, Step, View, sub_parameter_steps

__all__ = [
    "CODEGEN_BLOCKS",
    "codegen_steps",
    "kept_tail_steps",
    "scaled_steps",
    "shared_qk_steps",
    "split_steps",
]

CODEGEN_BLOCKS = 4
"""``codegen_mp_num``: CodeGen's fused weight was written for four devices."""


def split_steps(axis: str, dim: int, widths: Sequence[int]) -> tuple[Step, ...]:
    """Return the steps of a weight in rows (``dim`` 1) or columns (``dim`` 0), ``widths[i]`` of them for rank ``i``."""
    return (Shard(axis, dim, tuple(widths)),)


def scaled_steps(degree: int) -> tuple[Step, ...]:
    """Return the step of a replicated bias that each rank holds divided by the degree: their sum adds it once."""
    return (Scale(Fraction(1, degree)),)


def kept_tail_steps(axis: str, dim: int, head: Sequence[int], tail: int) -> tuple[Step, ...]:
    """Return the steps of GPT-BigCode (StarCoder): ``head``, the query block, is split, ``tail`` kept whole."""
    return (
        Blocks(dim, (sum(head), tail), ((Shard(axis, dim, tuple(head)),), ())),
        Join(dim),
    )


def codegen_steps(axes: Sequence[str], degree: int, shape: tuple[int, ...]) -> tuple[Step, ...]:
    """Return the steps of CodeGen's fused weight (or bias) of ``shape`` on ``degree`` ranks.

    The rows are four blocks of query, key, value; each third is cut in ``degree`` parts, and the parts are dealt
    out in order of block and part, each with its query, key and value together. ``axes`` has one name where the
    degree divides four; where four divides the degree, it has two, of sizes 4 and ``degree / 4``.

    Raises:
        LayoutError: ``UCP-E-LAYOUT`` for other degrees, and for rows that do not divide.
    """
    rows, *inner = shape
    unit = 3 * CODEGEN_BLOCKS * degree
    if rows % unit or len(axes) != (1 if CODEGEN_BLOCKS % degree == 0 else 2):
        raise error("UCP-E-LAYOUT", f"CodeGen's {rows} rows over {degree} ranks need a multiple of {unit}, "
                    "and one mesh axis for a divisor of 4, two for a multiple")  # fmt: skip
    if CODEGEN_BLOCKS % degree and degree % CODEGEN_BLOCKS:
        raise error("UCP-E-LAYOUT", f"a degree of {degree} neither divides 4 nor is a multiple of it")
    view = View((CODEGEN_BLOCKS, 3, degree, rows // unit, *inner))
    order = Permute((0, 2, 1, *range(3, len(view.shape))))
    return (view, order, *(Shard(axis, dim, "even") for dim, axis in enumerate(axes)))


def shared_qk_steps(axis: str, dim: int, extent: int) -> tuple[Step, ...]:
    """Return the steps of Yuan's shared query-key attention: a rank takes its part of both halves of the heads."""
    half, odd = divmod(extent, 2)
    if odd:
        raise error("UCP-E-LAYOUT", f"{extent} rows do not halve")
    return sub_parameter_steps(axis, dim, (half, half))
