"""Meshes and layouts as JSON (SPEC 12), to and from the dataclasses of `ucpformat.geometry`.

Reading has two stages, because a document's structure takes precedence over what it means: the records below
are structurally sound (``UCP-E-SCHEMA``), and `resolve` makes geometry of them (``UCP-E-REFERENCE``,
``UCP-E-LAYOUT``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, cast, get_args

from ucpformat.errors import Problem, UcpError, error
from ucpformat.geometry import (
    Axis,
    BlockRule,
    Blocks,
    Concat,
    Flatten,
    Join,
    Layout,
    LocalOnly,
    Mesh,
    MeshAxis,
    Only,
    Pad,
    Partial,
    Permute,
    RaggedAxis,
    Reduce,
    Resize,
    Rule,
    RuleName,
    Scale,
    Shard,
    Step,
    View,
    buffer_tail,
)
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, choice, integer, integers, members, relocated, string

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = [
    "STEP_KINDS",
    "LayoutRecord",
    "MeshRecord",
    "Resolved",
    "layout_to_json",
    "mesh_to_json",
    "resolve",
    "step_from_json",
    "step_to_json",
]

_NONE: Final[frozenset[str]] = frozenset()
_RULES: Final[tuple[str, ...]] = get_args(RuleName)
_REDUCTIONS: Final[tuple[str, ...]] = get_args(Reduce)
_RESIZES: Final[tuple[str, ...]] = get_args(Resize)
MAX_EXPONENT: Final = 4096
"""Of a factor, up or down (SPEC 12.3): more than any two floats differ by."""


@dataclass(frozen=True, slots=True)
class MeshRecord:
    """The members of a mesh, structurally sound."""

    axes: tuple[Axis, ...]
    ranks: tuple[int, ...] | None

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> MeshRecord:
        """Read a mesh object; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset({"axes"}), frozenset({"ranks"}), at)
        here = pointer(at, "axes")
        axes = tuple(
            _axis(axis, pointer(here, index)) for index, axis in enumerate(array(found["axes"], here))
        )
        ranks = integers(found["ranks"], pointer(at, "ranks")) if "ranks" in found else None
        return cls(axes, ranks)


def _axis(value: JsonValue, at: str) -> Axis:
    found = members(value, frozenset({"name"}), frozenset({"size", "by", "sizes"}), at)
    name = string(found["name"], pointer(at, "name"))
    match sorted(found.keys() - {"name"}):
        case ["size"]:
            return MeshAxis(name, integer(found["size"], pointer(at, "size"), least=1))
        case ["by", "sizes"]:
            by = string(found["by"], pointer(at, "by"))
            return RaggedAxis(name, by, integers(found["sizes"], pointer(at, "sizes"), items=1, least=1))
        case _:
            raise error("UCP-E-SCHEMA", "an axis has either 'size', or 'by' and 'sizes'", at=at)


@dataclass(frozen=True, slots=True)
class LayoutRecord:
    """The members of a layout, structurally sound; ``mesh`` is an index into the root's meshes."""

    mesh: int
    steps: tuple[Step, ...]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> LayoutRecord:
        """Read a layout object; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset({"mesh", "steps"}), _NONE, at)
        here = pointer(at, "steps")
        return cls(
            integer(found["mesh"], pointer(at, "mesh")),
            tuple(
                step_from_json(step, at=pointer(here, index))
                for index, step in enumerate(array(found["steps"], here))
            ),
        )


@dataclass(frozen=True, slots=True)
class Resolved:
    """Geometry made of records; where ``problems`` is not empty, some meshes or layouts are left out."""

    meshes: tuple[Mesh, ...]
    layouts: tuple[Layout, ...]
    problems: tuple[Problem, ...]


def resolve(meshes: Sequence[MeshRecord], layouts: Sequence[LayoutRecord], *, at: str) -> Resolved:
    """Return the meshes and layouts of the root document that lies at the place ``at``."""
    problems: list[Problem] = []
    made_meshes: dict[int, Mesh] = {}
    made_layouts: list[Layout] = []
    kept: list[tuple[int, int, Layout]] = []
    for index, record in enumerate(meshes):
        try:
            made_meshes[index] = Mesh(record.axes, record.ranks)
        except UcpError as refusal:
            problems.append(relocated(refusal, pointer(at, "meshes", index)).problem())
    for index, layout in enumerate(layouts):
        if layout.mesh >= len(meshes):
            here = pointer(at, "layouts", index, "mesh")
            message = f"there are {len(meshes)} meshes, and none with the index {layout.mesh}"
            problems.append(Problem("UCP-E-REFERENCE", here, message))
        elif layout.mesh in made_meshes:
            try:
                made_layouts.append(Layout(made_meshes[layout.mesh], layout.steps))
                kept.append((index, layout.mesh, made_layouts[-1]))
            except UcpError as refusal:
                problems.append(relocated(refusal, pointer(at, "layouts", index)).problem())
    problems.extend(_buffer_problems(kept, at))
    return Resolved(tuple(made_meshes.values()), tuple(made_layouts), tuple(problems))


def _buffer_problems(layouts: Sequence[tuple[int, int, Layout]], at: str) -> Iterator[Problem]:
    """Yield layouts that put tensors into one buffer and do different things with it (UCP-D-075)."""
    known: dict[tuple[int, str], tuple[Step, ...]] = {}
    for index, mesh, layout in layouts:
        tail = buffer_tail(layout)
        if tail is not None and known.setdefault((mesh, tail[0]), tail[1]) != tail[1]:
            message = (
                f"an earlier layout does something else with the buffer {tail[0][:80]!r}: name another group"
            )
            yield Problem("UCP-E-LAYOUT", pointer(at, "layouts", index, "steps"), message)


def _shard_from_json(value: JsonValue, at: str) -> Shard:
    base = frozenset({"kind", "axis", "dim"})
    found = members(value, base, frozenset({"rule", "sizes"}), at)
    if len(found) != 4:
        raise error("UCP-E-SCHEMA", "a shard has either 'rule' or 'sizes'", at=at)
    rule: Rule
    if "rule" in found:
        rule = cast("RuleName", choice(found["rule"], _RULES, pointer(at, "rule")))
    else:
        rule = integers(found["sizes"], pointer(at, "sizes"), items=1)
    axis = string(found["axis"], pointer(at, "axis"))
    return Shard(axis, integer(found["dim"], pointer(at, "dim")), rule)


def _blocks_from_json(value: JsonValue, at: str) -> Blocks:
    found = members(value, frozenset({"kind", "dim"}), frozenset({"sizes", "rule", "count", "steps"}), at)
    dim = integer(found["dim"], pointer(at, "dim"))
    sizes: tuple[int, ...] | BlockRule
    match sorted(found.keys() & {"sizes", "rule", "count"}):
        case ["sizes"]:
            sizes = integers(found["sizes"], pointer(at, "sizes"), items=1)
        case ["count", "rule"]:
            rule = cast("RuleName", choice(found["rule"], _RULES, pointer(at, "rule")))
            sizes = BlockRule(rule, integer(found["count"], pointer(at, "count"), least=1))
        case _:
            raise error("UCP-E-SCHEMA", "blocks have either 'sizes', or 'rule' and 'count'", at=at)
    if "steps" not in found:
        return Blocks(dim, sizes)
    here = pointer(at, "steps")
    entries = array(found["steps"], here)
    return Blocks(
        dim,
        sizes,
        tuple(
            None if entry is None else _own_steps(entry, pointer(here, index))
            for index, entry in enumerate(entries)
        ),
    )


def _own_steps(value: JsonValue, at: str) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    for index, item in enumerate(array(value, at)):
        here = pointer(at, index)
        _kind(item, ("shard",), here)
        shards.append(_shard_from_json(item, here))
    return tuple(shards)


def _join_from_json(value: JsonValue, at: str) -> Join:
    found = members(value, frozenset({"kind", "dim"}), _NONE, at)
    return Join(integer(found["dim"], pointer(at, "dim")))


def _flatten_from_json(value: JsonValue, at: str) -> Flatten:
    members(value, frozenset({"kind"}), _NONE, at)
    return Flatten()


def _only_from_json(value: JsonValue, at: str) -> Only:
    found = members(value, frozenset({"kind", "axis", "coordinates"}), _NONE, at)
    return Only(
        string(found["axis"], pointer(at, "axis")),
        integers(found["coordinates"], pointer(at, "coordinates"), items=1),
    )


def _view_from_json(value: JsonValue, at: str) -> View:
    found = members(value, frozenset({"kind", "shape"}), _NONE, at)
    return View(integers(found["shape"], pointer(at, "shape")))


def _permute_from_json(value: JsonValue, at: str) -> Permute:
    found = members(value, frozenset({"kind", "order"}), _NONE, at)
    return Permute(integers(found["order"], pointer(at, "order")))


def _pad_from_json(value: JsonValue, at: str) -> Pad:
    found = members(value, frozenset({"kind", "dim"}), frozenset({"to", "multiple"}), at)
    if len(found) != 3:
        raise error("UCP-E-SCHEMA", "padding has either 'to' or 'multiple'", at=at)
    dim = integer(found["dim"], pointer(at, "dim"))
    if "to" in found:
        return Pad(dim, to=integer(found["to"], pointer(at, "to")))
    return Pad(dim, multiple=integer(found["multiple"], pointer(at, "multiple"), least=1))


def _concat_from_json(value: JsonValue, at: str) -> Concat:
    found = members(value, frozenset({"kind", "group"}), _NONE, at)
    group = string(found["group"], pointer(at, "group"))
    if not group:
        raise error("UCP-E-SCHEMA", "a buffer has a name", at=pointer(at, "group"))
    return Concat(group)


def _partial_from_json(value: JsonValue, at: str) -> Partial:
    found = members(value, frozenset({"kind", "axis", "reduce"}), _NONE, at)
    reduce = choice(found["reduce"], _REDUCTIONS, pointer(at, "reduce"))
    return Partial(string(found["axis"], pointer(at, "axis")), cast("Reduce", reduce))


def _scale_from_json(value: JsonValue, at: str) -> Scale:
    found = members(value, frozenset({"kind", "exponent"}), _NONE, at)
    here = pointer(at, "exponent")
    exponent = integer(found["exponent"], here, least=-MAX_EXPONENT, most=MAX_EXPONENT)
    return Scale(Fraction(2) ** exponent)


def _local_from_json(value: JsonValue, at: str) -> LocalOnly:
    found = members(value, frozenset({"kind", "resize"}), _NONE, at)
    return LocalOnly(cast("Resize", choice(found["resize"], _RESIZES, pointer(at, "resize"))))


_READERS: Final[Mapping[str, Callable[[JsonValue, str], Step]]] = {
    "view": _view_from_json,
    "permute": _permute_from_json,
    "shard": _shard_from_json,
    "blocks": _blocks_from_json,
    "join": _join_from_json,
    "pad": _pad_from_json,
    "flatten": _flatten_from_json,
    "only": _only_from_json,
    "concat": _concat_from_json,
    "partial": _partial_from_json,
    "scale": _scale_from_json,
    "local": _local_from_json,
}
STEP_KINDS: Final = tuple(_READERS)


def _kind(value: JsonValue, kinds: tuple[str, ...], at: str) -> str:
    if type(value) is not dict or "kind" not in value:
        raise error("UCP-E-SCHEMA", "a step is an object with the member 'kind'", at=at)
    return choice(value["kind"], kinds, pointer(at, "kind"))


def step_from_json(value: JsonValue, *, at: str) -> Step:
    """Read one step; raises ``UCP-E-SCHEMA``. Whether it fits its mesh is for `resolve` to say."""
    return _READERS[_kind(value, STEP_KINDS, at)](value, at)


def step_to_json(step: Step) -> dict[str, JsonValue]:
    """Return the JSON object of one step.

    Raises ``UCP-E-LAYOUT``: a factor that is no power of two of at most `MAX_EXPONENT`.
    """
    match step:
        case Shard(axis, dim, str(rule)):
            return {"kind": "shard", "axis": axis, "dim": dim, "rule": rule}
        case Shard(axis, dim, sizes):
            return {"kind": "shard", "axis": axis, "dim": dim, "sizes": list(sizes)}
        case View(shape):
            return {"kind": "view", "shape": list(shape)}
        case Permute(order):
            return {"kind": "permute", "order": list(order)}
        case Pad(dim, None, multiple):
            return {"kind": "pad", "dim": dim, "multiple": multiple}
        case Pad(dim, to):
            return {"kind": "pad", "dim": dim, "to": to}
        case Blocks(dim, sizes, steps):
            value: dict[str, JsonValue] = {"kind": "blocks", "dim": dim}
            if isinstance(sizes, BlockRule):
                value.update(rule=sizes.rule, count=sizes.count)
            else:
                value["sizes"] = list(sizes)
            if steps is not None:
                value["steps"] = [
                    None if own is None else [step_to_json(shard) for shard in own] for own in steps
                ]
            return value
        case Join(dim):
            return {"kind": "join", "dim": dim}
        case Flatten():
            return {"kind": "flatten"}
        case Only(axis, coordinates):
            return {"kind": "only", "axis": axis, "coordinates": list(coordinates)}
        case Concat(group):
            return {"kind": "concat", "group": group}
        case Partial(axis, reduce):
            return {"kind": "partial", "axis": axis, "reduce": reduce}
        case Scale(factor):
            exponent = step.exponent
            if exponent is None or abs(exponent) > MAX_EXPONENT:
                message = (
                    f"only powers of two are stored, and not the factor {factor}: resolve it in the values"
                )
                raise error("UCP-E-LAYOUT", message)
            return {"kind": "scale", "exponent": exponent}
        case LocalOnly(resize):
            return {"kind": "local", "resize": resize}


def mesh_to_json(mesh: Mesh) -> dict[str, JsonValue]:
    """Return the JSON object of a mesh."""
    value: dict[str, JsonValue] = {"axes": [_axis_to_json(axis) for axis in mesh.axes]}
    if mesh.ranks is not None:
        value["ranks"] = list(mesh.ranks)
    return value


def _axis_to_json(axis: Axis) -> JsonValue:
    if isinstance(axis, RaggedAxis):
        return {"name": axis.name, "by": axis.by, "sizes": list(axis.sizes)}
    return {"name": axis.name, "size": axis.size}


def layout_to_json(layout: Layout, meshes: Sequence[Mesh]) -> dict[str, JsonValue]:
    """Return the JSON object of a layout whose mesh is one of ``meshes``.

    Raises ``UCP-E-REFERENCE``: the mesh is none of them.
    Raises ``UCP-E-LAYOUT``: as `step_to_json`.
    """
    if layout.mesh not in meshes:
        raise error("UCP-E-REFERENCE", "the layout's mesh is not one of the root's: add it")
    return {"mesh": meshes.index(layout.mesh), "steps": [step_to_json(step) for step in layout.steps]}
