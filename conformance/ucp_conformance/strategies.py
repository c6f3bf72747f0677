"""What generated cases are drawn from; alternatives stand simple first, so that shrinking ends there."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

from hypothesis import strategies as st

from ucp_conformance.connection import Claims
from ucp_conformance.exchange import plan_data
from ucp_conformance.oracle.arithmetic import scaled, spread_dtype
from ucp_conformance.oracle.bytes_of import ITEM_BYTES
from ucp_conformance.oracle.layouts import lower
from ucp_conformance.oracle.problem import RefusalError
from ucp_conformance.profiles import kinds_of

__all__ = ["plans"]

EXTENTS = (1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 11)
MOST_ELEMENTS = 400
KINDS = (
    "shard",
    "shard",
    "shard",
    "shard",
    "shard",
    "shard",
    "shard",
    "flatten",
    "blocks",
    "join",
    "only",
    "pad",
    "permute",
    "view",
    "concat",
)


@st.composite
def shapes(draw: st.DrawFn) -> list[int]:
    """Return up to four dimensions, few elements; 0, 1 and primes among the extents."""
    shape: list[int] = []
    size = 1
    for _ in range(draw(st.sampled_from([1, 2, 0, 3, 4]))):
        extent = draw(st.sampled_from([extent for extent in EXTENTS if size * extent <= MOST_ELEMENTS]))
        size *= max(1, extent)
        shape.append(extent)
    return shape


@st.composite
def splits(draw: st.DrawFn, extent: int, parts: int) -> list[int]:
    """Return sizes that sum to an extent, zeros among them."""
    cuts = sorted(draw(st.lists(st.integers(0, extent), min_size=parts - 1, max_size=parts - 1)))
    return [stop - start for start, stop in zip([0, *cuts], [*cuts, extent], strict=True)]


@st.composite
def shards(draw: st.DrawFn, axis: str, size: int, dim: int, extent: int) -> dict[str, Any]:
    """Return a shard step whose rule fits the extent."""
    rule = draw(st.sampled_from(["ceil", "ceil", "balanced", "even", "sizes"]))
    step: dict[str, Any] = {"kind": "shard", "axis": axis, "dim": dim}
    if rule == "sizes":
        return {**step, "sizes": draw(splits(extent, size))}
    return {**step, "rule": rule}


@st.composite
def layouts(draw: st.DrawFn, shape: Sequence[int], profiles: Sequence[str]) -> dict[str, Any]:
    """Return a mesh of at most eight ranks, and steps that lower; those that would not are left out."""
    kinds = kinds_of(profiles)
    axes: list[dict[str, Any]] = [
        {"name": name, "size": size}
        for name, size in zip(
            "abc",
            draw(st.lists(st.sampled_from([2, 3, 1, 4]), min_size=draw(st.sampled_from([1, 0])), max_size=3)),
            strict=False,
        )
    ]
    while _product(axes) > 8:
        axes.pop()
    if len(axes) > 1 and "ragged" in profiles and draw(st.sampled_from([False, False, True])):
        sizes = [draw(st.integers(1, 3)) for _ in range(axes[0]["size"])]
        axes[1] = {"name": axes[1]["name"], "by": axes[0]["name"], "sizes": sizes}
    mesh = {"axes": axes}
    steps: list[dict[str, Any]] = []
    place: dict[str, Any] | None = None
    for _ in range(draw(st.sampled_from([2, 1, 3, 0, 4, 6]))):
        step = draw(_step(mesh, shape, steps, kinds, place))
        if step is None:
            continue
        where = draw(_places(mesh, shape, steps)) if step["kind"] == "concat" and place is None else place
        if _lowers(mesh, [*steps, step], shape, where):
            steps.append(step)
            place = where
    return {"mesh": mesh, "steps": steps, **({} if place is None else {"place": place})}


@st.composite
def _places(
    draw: st.DrawFn, mesh: dict[str, Any], shape: Sequence[int], steps: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a place for what the steps leave at any coordinate, the same everywhere or by one axis."""
    most = max(
        (len(local.cells) for local in lower(mesh, steps, shape).values() if local is not None), default=0
    )
    before, behind = draw(st.integers(0, 5)), draw(st.integers(0, 5))
    fixed = [axis for axis in mesh["axes"] if "size" in axis]
    if not fixed or draw(st.booleans()):
        return {"offsets": [before], "totals": [before + most + behind]}
    axis = draw(st.sampled_from(fixed))
    offsets = [before + draw(st.integers(0, 2)) for _ in range(axis["size"])]
    return {
        "offsets": offsets,
        "totals": [offset + most + behind for offset in offsets],
        "axes": [axis["name"]],
    }


def _product(axes: Sequence[dict[str, Any]]) -> int:
    size = 1
    for axis in axes:
        size *= axis["size"]
    return size


def _lowers(
    mesh: dict[str, Any], steps: list[dict[str, Any]], shape: Sequence[int], place: dict[str, Any] | None
) -> bool:
    try:
        lower(mesh, steps, shape, place)
    except RefusalError:
        return False
    return True


@st.composite
def _reshaped(draw: st.DrawFn, shape: Sequence[int]) -> list[int]:
    """Return another shape of as many elements: neighbours joined, or an extent split by a factor."""
    found = list(shape)
    for _ in range(draw(st.integers(1, 2))):
        if len(found) > 1 and draw(st.booleans()):
            at = draw(st.integers(0, len(found) - 2))
            found[at : at + 2] = [found[at] * found[at + 1]]
        elif found:
            at = draw(st.integers(0, len(found) - 1))
            factor = draw(st.sampled_from([f for f in (1, 2, 3, 4) if found[at] % f == 0]))
            found[at : at + 1] = [found[at] // factor, factor]
    return found


@st.composite
def _step(
    draw: st.DrawFn,
    mesh: dict[str, Any],
    shape: Sequence[int],
    steps: list[dict[str, Any]],
    kinds: Sequence[str],
    place: dict[str, Any] | None,
) -> dict[str, Any] | None:
    kind = draw(st.sampled_from([kind for kind in KINDS if kind in kinds]))
    flat = any(step["kind"] == "flatten" for step in steps)
    if kind == "flatten":
        return {"kind": "flatten"}
    if kind == "concat":
        return {"kind": "concat", "group": "g"} if flat else None
    if kind == "only":
        if not mesh["axes"]:
            return None
        axis = draw(st.sampled_from(mesh["axes"]))
        least = axis.get("size", 0) or min(axis["sizes"])
        places = draw(st.lists(st.integers(0, least - 1), min_size=1, unique=True))
        return {"kind": "only", "axis": axis["name"], "coordinates": sorted(places)}
    # The shape as the steps before have left it, at the first coordinate that holds anything.
    seen = next((local.shape for local in lower(mesh, steps, shape, place).values() if local is not None), ())
    if kind == "permute":
        return {"kind": "permute", "order": draw(st.permutations(range(len(seen))))}
    if kind == "view":
        return {"kind": "view", "shape": draw(_reshaped(seen))}
    dims = 1 if flat else len(seen)
    if dims == 0:
        return None
    dim = draw(st.integers(0, dims - 1))
    extent = seen[dim] if dim < len(seen) else 0
    if kind == "pad":
        if draw(st.booleans()):
            return {"kind": "pad", "dim": dim, "multiple": draw(st.integers(1, 5))}
        return {"kind": "pad", "dim": dim, "to": extent + draw(st.integers(0, 3))}
    if kind == "join":
        return {"kind": "join", "dim": dim}
    if kind == "blocks":
        if draw(st.sampled_from([False, False, True])):
            rule = draw(st.sampled_from(["ceil", "balanced", "even"]))
            return {"kind": "blocks", "dim": dim, "rule": rule, "count": draw(st.integers(1, 4))}
        sizes = draw(splits(extent, draw(st.integers(1, 4))))
        step: dict[str, Any] = {"kind": "blocks", "dim": dim, "sizes": sizes}
        if mesh["axes"] and draw(st.booleans()):
            axis = draw(st.sampled_from(mesh["axes"]))
            own = [draw(st.sampled_from([None, "keep", "split"])) for _ in sizes]
            step["steps"] = [
                None
                if how is None
                else []
                if how == "keep"
                else [draw(shards(axis["name"], axis.get("size", 1), dim, size))]
                for how, size in zip(own, sizes, strict=True)
            ]
        return step
    if not mesh["axes"]:
        return None
    axis = draw(st.sampled_from(mesh["axes"]))
    return draw(shards(axis["name"], axis.get("size", 1), dim, extent))


@st.composite
def _entries(draw: st.DrawFn) -> tuple[list[int], dict[str, Any], dict[str, Any]]:
    """Return entries of each coordinate's own: a shape, the layout that holds them, and one that asks for them."""
    sizes = draw(st.sampled_from([[2], [1], [3], [2, 2], [4], [1, 3]]))
    mesh = {"axes": [{"name": name, "size": size} for name, size in zip("ab", sizes, strict=False)]}
    resize = draw(st.sampled_from(["refuse", "keep"]))
    step = {"kind": "local", "resize": resize}
    other = draw(st.sampled_from(["same", "flat", "plain"]))
    flat = {"axes": [{"name": "n", "size": _product(mesh["axes"])}]}
    targets: dict[str, dict[str, Any]] = {
        "same": {"mesh": mesh, "steps": [step]},
        "flat": {"mesh": flat, "steps": [step]},
        "plain": {"mesh": flat, "steps": []},
    }
    shape = [_product(mesh["axes"]), *draw(st.sampled_from([[], [3], [2, 2], [0]]))]
    return shape, {"mesh": mesh, "steps": [step]}, targets[other]


def _with_partial(draw: st.DrawFn, plan: dict[str, Any], side: str) -> None:
    """Leave some axis of a side pending, if that lowers and, in a source, its contributions have a reduction."""
    layout = plan[side]
    taken = {axis["by"] for axis in layout["mesh"]["axes"] if "by" in axis}
    taken |= {step["axis"] for step in layout["steps"] if "axis" in step}
    taken |= {own["axis"] for step in layout["steps"] for part in step.get("steps", ()) for own in part or ()}
    free = [axis["name"] for axis in layout["mesh"]["axes"] if "size" in axis and axis["name"] not in taken]
    if not free:
        return
    reduce = draw(st.sampled_from(["sum", "mean", "max"]))
    steps = list(layout["steps"])
    for axis in draw(st.lists(st.sampled_from(free), min_size=1, max_size=2, unique=True)):
        at = draw(st.integers(0, len(steps)))
        steps.insert(at, {"kind": "partial", "axis": axis, "reduce": reduce})
    if not _lowers(layout["mesh"], steps, plan["shape"], layout.get("place")):
        return
    found = {**plan, side: {**layout, "steps": steps}}
    try:
        spread_dtype(plan["dtype"], "partial", reduce)
        plan_data(found)
    except RefusalError:
        return
    plan[side] = found[side]


@st.composite
def plans(draw: st.DrawFn, writer: Claims, reader: Claims) -> dict[str, Any]:
    """Return a plan that both sides claim to master."""
    both = {
        member: [value for value in writer.document[member] if value in reader.document[member]]
        for member in ("storages", "dtypes", "profiles")
    }
    shape = draw(shapes())
    order = list(ITEM_BYTES)
    # Mostly layouts: whole tensors have few ways to be wrong.
    kinds = kinds_of(both["profiles"])
    maybe = st.one_of(st.none(), *[layouts(shape, both["profiles"])] * 3) if kinds else st.none()
    source, target = draw(maybe), draw(maybe)
    if "local" in kinds and draw(st.sampled_from([*[False] * 9, True])):
        shape, source, target = draw(_entries())
    dtypes = sorted(
        both["dtypes"], key=lambda name: (name != "uint8", order.index(name) if name in order else 99)
    )
    gzip = writer.writes_compressor("gzip") and "gzip" in reader.document["compressors"]
    level = draw(st.none() | st.integers(0, 9)) if gzip else None
    plan = {
        "storage": draw(st.sampled_from(sorted(both["storages"]))),
        "chunk_bytes": draw(st.sampled_from([1 << 20, 16, 17, 24, 64, 100])),
        "dtype": draw(st.sampled_from([name for name in dtypes if name in ITEM_BYTES])),
        "shape": shape,
        "data": draw(
            st.sampled_from(["counter", "zeros"]) | st.integers(0, 2**32).map(lambda seed: f"random:{seed}")
        ),
        "compressor": None if level is None else {"name": "gzip", "configuration": {"level": level}},
        "source": source,
        "target": target,
        "rewrite": draw(st.none() | st.sampled_from(sorted(both["storages"]))),
    }
    for side in ("source", "target"):
        if plan[side] is not None and [step["kind"] for step in plan[side]["steps"]] != ["local"]:
            _with_value_steps(draw, plan, side, kinds)
    _with_base_and_image(plan, writer, reader)
    return plan


def _with_base_and_image(plan: dict[str, Any], writer: Claims, reader: Claims) -> None:
    """Maybe make the checkpoint an increment, and maybe give it a process image.

    It is a function of the plan and no draw of its own, so that what fails without either is shrunk as far as ever.
    """

    def master(feature: str) -> bool:
        return writer.writes_feature(feature) and feature in reader.document["read_features"]

    random = Random(repr(sorted(plan.items())))  # noqa: S311 - no secret
    base, has_image = random.choice([None, None, "equal", "part", "other"]), random.random() < 0.25
    shares = master("incremental") and "row-overwrite" in reader.document["read_features"]
    plan["base"] = base if shares else None
    plan["image"] = has_image and master("process-images")


def _with_value_steps(draw: st.DrawFn, plan: dict[str, Any], side: str, kinds: Sequence[str]) -> None:
    """Maybe leave a reduction pending, and maybe multiply by a factor that is exact."""
    if "partial" in kinds and draw(st.sampled_from([False, True])):
        _with_partial(draw, plan, side)
    exponent = draw(st.sampled_from([0, 0, 0, 1, -1, 5, -20]))
    if "scale" not in kinds or not exponent:
        return
    layout = plan[side]
    at = draw(st.integers(0, len(layout["steps"])))
    steps = [*layout["steps"][:at], {"kind": "scale", "exponent": exponent}, *layout["steps"][at:]]
    found = {**plan, side: {**layout, "steps": steps}}
    pending = any(step["kind"] == "partial" for step in plan["source"]["steps"]) if plan["source"] else False
    try:
        raw = plan_data(found)
        if side == "target" or not pending:
            scaled(raw, plan["dtype"], exponent)
    except RefusalError:
        return
    plan[side] = found[side]
