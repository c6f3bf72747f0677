"""Shapes, meshes, layouts, boxes and cut-up piece lists for property tests."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from hypothesis import strategies as st

from ucpformat.geometry import (
    BlockRule,
    Blocks,
    Box,
    BufferPlace,
    Concat,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Lowering,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    Piece,
    RaggedAxis,
    Resize,
    Rule,
    Scale,
    Shard,
    Step,
    Strided,
    View,
    lower,
    row_major_strides,
)

__all__ = [
    "ALL_KINDS",
    "boxes",
    "coarse_maps",
    "layouts",
    "lowerings",
    "meshes",
    "nonempty_boxes",
    "placed_layouts",
    "recut",
    "shapes",
    "shapes_with_boxes",
    "sizes_summing_to",
    "tilings",
    "views_of",
]

ALL_KINDS = "view pad concat scale partial local"
RESIZES: tuple[Resize, ...] = ("refuse", "keep")
EXTENTS = (1, 0, 2, 3, 4, 5, 6, 7, 8, 11, 13)


@st.composite
def shapes(draw: st.DrawFn, max_ndim: int = 5, max_elements: int = 600) -> tuple[int, ...]:
    """Shapes of 0 to ``max_ndim`` dims with extents 0, 1, primes and composites, few elements in all."""
    shape: list[int] = []
    for _ in range(draw(st.sampled_from([*range(2, max_ndim + 1), 1, 0]))):
        room = max_elements // max(1, math.prod(shape))
        shape.append(draw(st.sampled_from([extent for extent in EXTENTS if extent <= room])))
    return tuple(shape)


@st.composite
def meshes(draw: st.DrawFn, max_ranks: int = 64) -> Mesh:
    """Meshes of 0 to 3 axes, some ragged; every other one lists its ranks in another order."""
    axes: list[MeshAxis | RaggedAxis] = []
    room = max_ranks
    for _ in range(draw(st.sampled_from([2, 3, 3, 2, 1, 0]))):
        name = f"a{len(axes)}"
        fixed = [axis for axis in axes if isinstance(axis, MeshAxis)]
        most = st.sampled_from(range(1, 1 + min(5, room)))
        if fixed and draw(st.sampled_from([False, False, True])):
            by = draw(st.sampled_from(fixed))
            axes.append(RaggedAxis(name, by.name, tuple(draw(most) for _ in range(by.size))))
        else:
            axes.append(MeshAxis(name, draw(most)))
        room //= axes[-1].size
    mesh = Mesh(tuple(axes))
    if draw(st.booleans()):
        return mesh
    ranks = draw(st.lists(st.integers(0, 90), min_size=mesh.size, max_size=mesh.size, unique=True))
    return Mesh(mesh.axes, tuple(ranks))


@st.composite
def sizes_summing_to(draw: st.DrawFn, total: int, count: int) -> tuple[int, ...]:
    """``count`` integers >= 0 (zeros are common) with the sum ``total``."""
    cuts = sorted(draw(st.lists(st.integers(0, total), min_size=count - 1, max_size=count - 1)))
    edges = [0, *cuts, total]
    return tuple(high - low for low, high in pairwise(edges))


class _Dim:
    """What a layout under construction knows of one dim.

    ``extents`` of its free blocks and ``closed``, the total of the others, or None where they differ between
    coordinates; ``blocks`` tells whether it is cut; no coordinate has more than ``most``.
    """

    def __init__(self, extent: int | None) -> None:
        self.extents = None if extent is None else [extent]
        self.closed: int | None = 0
        self.most = extent or 0
        self.blocks = False

    @property
    def total(self) -> int | None:
        if self.extents is None or self.closed is None:
            return None
        return sum(self.extents) + self.closed


@st.composite
def _meshes_of(draw: st.DrawFn, ranks: int) -> Mesh:
    """Meshes with as many ranks."""
    first = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    return Mesh((MeshAxis("a0", first), MeshAxis("a1", ranks // first)))


@st.composite
def placed_layouts(
    draw: st.DrawFn, shape: tuple[int, ...], mesh: Mesh | None = None, kinds: str = "view pad concat scale"
) -> tuple[Layout, BufferPlace | None]:
    """Layouts of up to 6 steps that lower on ``shape``, each with its place where it needs one.

    Shards by every rule, blocks, joins, flatten, only, replication, and what ``kinds`` names.
    """
    may_be_local = "local" in kinds and mesh is None and bool(shape) and 0 < shape[0] <= 64
    if may_be_local and draw(st.sampled_from([False] * 7 + [True])):
        return Layout(draw(_meshes_of(shape[0])), (LocalOnly(draw(st.sampled_from(RESIZES))),)), None
    mesh = draw(meshes()) if mesh is None else mesh
    steps: list[Step] = []
    if "view" in kinds:
        shape = draw(_reinterpretations(shape, steps))
    dims = [_Dim(extent) for extent in shape]
    fixed_axes = [axis for axis in mesh.axes if isinstance(axis, MeshAxis)]
    unused = list(draw(st.permutations(mesh.axes)))
    flattened = False
    place: BufferPlace | None = None
    for _ in range(draw(st.sampled_from([3, 4, 5, 6, 2, 1, 0])) - len(steps)):
        # What may come next: the kind of step, and the dim that it acts on.
        options: list[tuple[str, int]] = [] if flattened else [("flatten", 0)]
        options += [("only", 0)] if unused else []
        scaled = any(isinstance(step, Scale) for step in steps)
        options += [("scale", 0)] if "scale" in kinds and not scaled else []
        fixed = [axis for axis in unused if isinstance(axis, MeshAxis)]
        options += [("partial", 0)] if "partial" in kinds and fixed else []
        if "concat" in kinds and flattened and place is None and not dims[0].blocks:
            options.append(("concat", 0))
        for number, dim in enumerate(dims):
            if unused and (dim.extents is None or dim.extents):
                options += [("shard", number)] * 2
            if dim.blocks:
                options.append(("join", number))
            else:
                options.append(("blocks", number))
                options += [("pad", number)] if "pad" in kinds else []
        action, number = draw(st.sampled_from(options))
        match action:
            case "flatten":
                totals = [dim.total for dim in dims]
                known = [total for total in totals if total is not None]
                most = math.prod(dim.most for dim in dims)
                dims = [_Dim(math.prod(known) if len(known) == len(totals) else None)]
                dims[0].most = most
                flattened = True
                steps.append(Flatten())
            case "concat":
                # Longer than any rank's part; half of the places differ by coordinate.
                extent = dims[0].most
                # What the place depends on is not split over later.
                summed_over = {step.axis for step in steps if isinstance(step, Partial)}
                choice = [axis for axis in fixed_axes if axis.name not in summed_over]
                axes = tuple(draw(st.lists(st.sampled_from(choice), unique=True))) if choice else ()
                unused = [axis for axis in unused if axis not in axes]
                count = math.prod(axis.size for axis in axes)
                offsets = tuple(draw(st.integers(0, 7)) for _ in range(count))
                place = BufferPlace(offsets, (7 + extent,) * count, tuple(axis.name for axis in axes))
                steps.append(Concat("group"))
                dims = [_Dim(7 + extent)]
            case "scale":
                steps.append(
                    Scale(Fraction(draw(st.sampled_from([1, 2, -3])), draw(st.sampled_from([1, 4]))))
                )
            case "partial":
                summed = draw(st.sampled_from(fixed))
                unused.remove(summed)
                steps.append(Partial(summed.name, "sum"))
            case "pad":
                steps.append(draw(_pads(dims[number], number)))
            case "only":
                axis = _popped(unused)
                least = min(axis.sizes) if isinstance(axis, RaggedAxis) else axis.size
                positions = draw(st.sets(st.integers(0, least - 1), min_size=1))
                steps.append(Only(axis.name, tuple(sorted(positions))))
            case "shard":
                axis = _popped(unused)
                steps.append(Shard(axis.name, number, draw(_rules(dims[number], axis))))
            case "blocks":
                steps.append(draw(_blocks(dims[number], number, unused)))
            case _:
                most = dims[number].most
                dims[number] = _Dim(dims[number].total)
                dims[number].most = most
                steps.append(Join(number))
    return Layout(mesh, tuple(steps)), place


def layouts(shape: tuple[int, ...], mesh: Mesh | None = None) -> st.SearchStrategy[Layout]:
    """Layouts as `placed_layouts`, without buffers."""
    return placed_layouts(shape, mesh, "view pad scale").map(lambda pair: pair[0])


@st.composite
def lowerings(draw: st.DrawFn, shape: tuple[int, ...], kinds: str = "view pad concat scale") -> Lowering:
    """Layouts of every kind, lowered on ``shape``."""
    layout, place = draw(placed_layouts(shape, kinds=kinds))
    return lower(layout, shape, place=place)


@st.composite
def _reinterpretations(draw: st.DrawFn, shape: tuple[int, ...], steps: list[Step]) -> tuple[int, ...]:
    """Views and permutations, appended to ``steps``: dims split and joined so that everything fits."""
    # The dims as lists of factors that no later view cuts.
    dims = [_factors(draw, extent) for extent in shape]
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 3]))):
        if draw(st.booleans()):
            order = tuple(draw(st.permutations(range(len(dims)))))
            dims = [dims[dim] for dim in order]
            steps.append(Permute(order))
        else:
            flat = [factor for dim in dims for factor in dim]
            cuts = sorted(draw(st.sets(st.integers(0, len(flat)), max_size=3)))
            edges = [0, *cuts, len(flat)]
            dims = [flat[low:high] for low, high in pairwise(edges)]
            steps.append(View(tuple(map(math.prod, dims))))
    return tuple(map(math.prod, dims))


def _factors(draw: st.DrawFn, extent: int) -> list[int]:
    for factor in (2, 3):
        if extent > factor and extent % factor == 0 and draw(st.booleans()):
            return [extent // factor, factor]
    return [extent]


@st.composite
def _pads(draw: st.DrawFn, dim: _Dim, number: int) -> Pad:
    total = dim.total
    if total is not None and draw(st.booleans()):
        to = total + draw(st.integers(0, 3))
        dim.extents, dim.closed = [to], 0
        dim.most = to
        return Pad(number, to=to)
    multiple = draw(st.integers(1, 4))
    to = -(-(dim.most if total is None else total) // multiple) * multiple
    dim.extents = None if total is None else [to]
    dim.most = to
    return Pad(number, multiple=multiple)


def _popped(unused: list[MeshAxis | RaggedAxis]) -> MeshAxis | RaggedAxis:
    """The next axis to use; one that decides its size is no longer to be used then."""
    axis = unused.pop()
    if isinstance(axis, RaggedAxis):
        unused[:] = [other for other in unused if other.name != axis.by]
    return axis


@st.composite
def _rules(draw: st.DrawFn, dim: _Dim, axis: MeshAxis | RaggedAxis) -> Rule:
    options = ["ceil", "balanced"]
    extents = dim.extents
    parts = axis.size
    if extents is not None and isinstance(axis, MeshAxis):
        if all(extent % parts == 0 for extent in extents):
            options.append("even")
        if len(set(extents)) == 1:
            options.append("sizes")
    rule = draw(st.sampled_from(options))
    if extents is not None and rule == "even":
        dim.extents = [extent // parts for extent in extents]
        return "even"
    if parts > 1:
        dim.extents = None
    if extents is not None and rule == "sizes":
        return draw(sizes_summing_to(extents[0], parts))
    return "ceil" if rule == "ceil" else "balanced"


@st.composite
def _blocks(draw: st.DrawFn, dim: _Dim, place: int, unused: list[MeshAxis | RaggedAxis]) -> Blocks:
    total = dim.total
    count = draw(st.integers(1, 4))
    dim.blocks = True
    sizes: tuple[int, ...] | BlockRule
    if total is None or draw(st.booleans()):
        sizes = BlockRule(draw(st.sampled_from(["ceil", "balanced"])), count)
        known = None
    else:
        known = sizes = draw(sizes_summing_to(total, count))
    dim.extents = None if known is None else list(known)
    kind = draw(st.sampled_from(["none", "replicated", "own"]))
    if kind == "none":
        return Blocks(place, sizes)
    # One axis serves the own steps of several blocks.
    own = _popped(unused) if kind == "own" and unused else None
    steps: list[tuple[Shard, ...] | None] = []
    free: list[int] = []
    for block in range(count):
        size = None if known is None else known[block]
        how = draw(st.sampled_from(["free", "whole", "own"]))
        if how == "free":
            steps.append(None)
            free.append(size or 0)
        elif how == "own" and own is not None:
            rules: st.SearchStrategy[Rule] = st.sampled_from(["ceil", "balanced"])
            if size is not None and isinstance(own, MeshAxis):
                rules |= sizes_summing_to(size, own.size)
            steps.append((Shard(own.name, place, draw(rules)),))
            dim.closed = None
        else:
            steps.append(())
            dim.closed = None if dim.closed is None or size is None else dim.closed + size
    # Without a free block no shard may follow; with unknown sizes only the rules that always fit.
    dim.extents = None if known is None and free else free
    return Blocks(place, sizes, tuple(steps))


@st.composite
def boxes(draw: st.DrawFn, shape: tuple[int, ...]) -> Box:
    """Boxes inside ``shape``, empty ones among them."""
    edges = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(low for low, _ in edges), tuple(high - low for low, high in edges))


def nonempty_boxes(shape: tuple[int, ...]) -> st.SearchStrategy[Box]:
    """Boxes inside ``shape``, which has no zero extent, with at least one cell."""
    return boxes(tuple(extent - 1 for extent in shape)).map(
        lambda box: Box(box.offset, tuple(extent + 1 for extent in box.shape))
    )


@st.composite
def shapes_with_boxes(draw: st.DrawFn, count: int) -> tuple[tuple[int, ...], list[Box]]:
    """A shape, and ``count`` boxes inside it."""
    shape = draw(shapes())
    return shape, [draw(boxes(shape)) for _ in range(count)]


@st.composite
def tilings(draw: st.DrawFn, whole: Box, max_cuts: int = 6) -> list[Box]:
    """Disjoint boxes that tile ``whole``, which is not empty: repeated guillotine cuts, shuffled."""
    parts = [whole]
    for _ in range(draw(st.integers(0, max_cuts))):
        box = parts.pop(draw(st.integers(0, len(parts) - 1)))
        wide = [dim for dim, extent in enumerate(box.shape) if extent > 1]
        if not wide:
            parts.append(box)
            continue
        dim = draw(st.sampled_from(wide))
        cut = draw(st.integers(1, box.shape[dim] - 1))
        offset, shape = list(box.offset), list(box.shape)
        shape[dim] = cut
        parts.append(Box(tuple(offset), tuple(shape)))
        offset[dim] += cut
        shape[dim] = box.shape[dim] - cut
        parts.append(Box(tuple(offset), tuple(shape)))
    return draw(st.permutations(parts))


@st.composite
def coarse_maps(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Piece, ...]:
    """Disjoint pieces on ``shape`` (no zero extent) whose places and strides often allow merging."""
    dense = row_major_strides(shape)
    pieces: list[Piece] = []
    for box in draw(tilings(Box.whole(shape))):
        kind = draw(st.sampled_from(["dense", "dense", "dense", "moved", "strided", "absent"]))
        strides = dense
        if kind == "absent":
            continue
        if kind == "strided":
            strides = tuple(draw(st.integers(1, 4)) for _ in shape)
        place = Strided(draw(st.integers(0, 3)) if kind == "moved" else 0, strides).shifted(box.offset)
        scale = Fraction(draw(st.sampled_from([1, 1, 1, 2])))
        pieces.append(Piece(box, place, scale))
    return tuple(pieces)


@st.composite
def recut(draw: st.DrawFn, pieces: tuple[Piece, ...]) -> list[Piece]:
    """The same map as ``pieces``, cut at random and shuffled; strides of extent-1 dims made meaningless."""
    parts: list[Piece] = []
    for piece in pieces:
        for box in draw(tilings(piece.box, max_cuts=4)):
            part = piece.clip(box)
            if part is not None:
                strides = tuple(
                    draw(st.integers(-9, 9)) if extent == 1 else stride
                    for stride, extent in zip(part.local.strides, part.box.shape, strict=True)
                )
                parts.append(Piece(part.box, Strided(part.local.offset, strides), part.scale))
    return draw(st.permutations(parts))


@st.composite
def views_of(draw: st.DrawFn, count: int) -> tuple[int, ...]:
    """Shapes of ``count`` elements, with dims of extent 1 among them."""
    shape: list[int] = []
    while count > 1:
        shape.append(draw(st.sampled_from([extent for extent in range(1, count + 1) if count % extent == 0])))
        count //= shape[-1]
    return (*shape, *draw(st.sampled_from([(), (), (1,)])))
