"""Weight versions: the stages of a pipeline, and what is in flight in them (SPEC 15.3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem, error
from ucpformat.geometry import MeshAxis, Only
from ucpformat.jsonio import pointer
from ucpformat.model.fields import array, integer, members, raise_first, string

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.geometry import Layout
    from ucpformat.jsonio import JsonValue

__all__ = ["Pipeline", "PipelineStage", "SlotKinds", "version_slot"]

_NONE: Final[frozenset[str]] = frozenset()
_PIPELINE_MEMBERS: Final = frozenset({"axis", "stages"})
_STAGE_MEMBERS: Final = frozenset({"updates", "atoms", "in_flight"})
_MINIBATCH_MEMBERS: Final = frozenset({"minibatch", "version"})


SlotKinds = Mapping[str, tuple[str, tuple[int, ...]]]
"""The data type and the shape of each slot of an atom."""


def version_slot(version: int) -> str:
    """Return the name of the slot that has the value of an atom after so many updates, where more have been made."""
    return f"version-{version}"


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """One stage of a pipeline that stashes versions of its weights.

    Attributes:
        updates: how many updates its weights have had.
        atoms: the names of its weights, as the checkpoint has them: without ``model``.
        in_flight: minibatches that went forward through it and not yet backward, ascending, each with the number of
            updates that its weights had had when it went forward.

    >>> stage = ucp.PipelineStage(10, ("layers.0.weight",), ((10, 8), (11, 9)))
    >>> stage.stashed
    (8, 9)
    """

    updates: int
    atoms: tuple[str, ...]
    in_flight: tuple[tuple[int, int], ...] = ()

    @property
    def stashed(self) -> tuple[int, ...]:
        """The versions before the newest that minibatches in flight went through, ascending.

        >>> ucp.PipelineStage(10, (), ((10, 8), (11, 10))).stashed
        (8,)
        """
        return tuple(sorted({version for _, version in self.in_flight} - {self.updates}))

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> PipelineStage:
        """Read a stage; raises ``UCP-E-SCHEMA``.

        >>> ucp.PipelineStage.from_json({"updates": 1, "atoms": [], "in_flight": []}, at="").updates
        1
        """
        found = members(value, _STAGE_MEMBERS, _NONE, at)
        names, flights = pointer(at, "atoms"), pointer(at, "in_flight")
        in_flight = []
        for index, one in enumerate(array(found["in_flight"], flights)):
            here = pointer(flights, index)
            entry = members(one, _MINIBATCH_MEMBERS, _NONE, here)
            minibatch = integer(entry["minibatch"], pointer(here, "minibatch"))
            in_flight.append((minibatch, integer(entry["version"], pointer(here, "version"))))
        return cls(
            integer(found["updates"], pointer(at, "updates")),
            tuple(
                string(name, pointer(names, index)) for index, name in enumerate(array(found["atoms"], names))
            ),
            tuple(in_flight),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads.

        >>> ucp.PipelineStage(1, ("w",), ((2, 0),)).to_json()
        {'updates': 1, 'atoms': ['w'], 'in_flight': [{'minibatch': 2, 'version': 0}]}
        """
        return {
            "updates": self.updates,
            "atoms": list(self.atoms),
            "in_flight": [
                {"minibatch": minibatch, "version": version} for minibatch, version in self.in_flight
            ],
        }


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of a pipeline, in order, and the axis of the job's meshes along which they lie.

    Stashed weights stand in a state below ``versions``, by the number of updates and then as the weights themselves
    do: ``state["versions"][8]["model"]`` has those of ``state["model"]`` after 8 updates.

    Attributes:
        axis: the name of the axis.
        stages: one for each position of the axis.

    >>> stages = (ucp.PipelineStage(1, ("a",), ((1, 0),)), ucp.PipelineStage(1, ("b",)))
    >>> pipeline = ucp.Pipeline("pp", stages)
    >>> state = {"model": {"a": np.ones(2), "b": np.ones(3)}, "versions": {0: {"model": {"a": np.zeros(2)}}}}
    >>> report = ucp.save("run.ucp", state, pipeline=pipeline)
    >>> ucp.open("run.ucp").pipeline == pipeline
    True
    """

    axis: str
    stages: tuple[PipelineStage, ...]

    @property
    def is_in_flight(self) -> bool:
        """Whether a minibatch is in flight in any stage; else the pipeline is drained.

        >>> ucp.Pipeline("pp", (ucp.PipelineStage(3, ("w",)),)).is_in_flight
        False
        """
        return any(stage.in_flight for stage in self.stages)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Pipeline:
        """Read a pipeline; raises as for a stage.

        >>> stage = {"updates": 1, "atoms": ["w"], "in_flight": []}
        >>> ucp.Pipeline.from_json({"axis": "pp", "stages": [stage]}, at="").axis
        'pp'
        """
        found = members(value, _PIPELINE_MEMBERS, _NONE, at)
        here = pointer(at, "stages")
        axis = string(found["axis"], pointer(at, "axis"))
        if not axis:
            raise error("UCP-E-SCHEMA", "an axis has a name", at=pointer(at, "axis"))
        stages = enumerate(array(found["stages"], here, least=1))
        return cls(
            axis, tuple(PipelineStage.from_json(stage, at=pointer(here, index)) for index, stage in stages)
        )

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield what is wrong with the stages.

        ``UCP-E-NAME`` for atoms of two stages and minibatches out of order, ``UCP-E-REFERENCE`` for versions that are
        later than the stage's.

        >>> [problem.code for problem in ucp.Pipeline("pp", (ucp.PipelineStage(1, ("w", "w")),)).problems(at="")]
        ['UCP-E-NAME']
        """
        seen: set[str] = set()
        for number, stage in enumerate(self.stages):
            here = pointer(at, "stages", number)
            for index, name in enumerate(stage.atoms):
                if name in seen:
                    message = f"{name[:80]!r} is in a stage already"
                    yield Problem("UCP-E-NAME", pointer(here, "atoms", index), message)
                seen.add(name)
            last = -1
            for index, (minibatch, version) in enumerate(stage.in_flight):
                if minibatch <= last:
                    message = "minibatches in flight are strictly ascending"
                    yield Problem("UCP-E-NAME", pointer(here, "in_flight", index, "minibatch"), message)
                last = minibatch
                if version > stage.updates:
                    message = f"the stage has had {stage.updates} updates, and not {version}"
                    where = pointer(here, "in_flight", index, "version")
                    yield Problem("UCP-E-REFERENCE", where, message)

    def atom_problems(self, atoms: Iterable[tuple[str, SlotKinds]], *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-REFERENCE`` for atoms that are not there, or lack a version (UCP-D-143, UCP-D-147).

        ``atoms`` are names with the data types and shapes of their slots.

        >>> pipeline = ucp.Pipeline("pp", (ucp.PipelineStage(1, ("w",)),))
        >>> [problem.code for problem in pipeline.atom_problems([], at="")]
        ['UCP-E-REFERENCE']
        """
        known = dict(atoms)
        for number, stage in enumerate(self.stages):
            for index, name in enumerate(stage.atoms):
                here = pointer(at, "stages", number, "atoms", index)
                value = known.get(name, {}).get("value")
                if value is None:
                    yield Problem("UCP-E-REFERENCE", here, f"there is no atom {name[:80]!r} with a value")
                    continue
                for version in stage.stashed:
                    if known[name].get(version_slot(version)) != value:
                        message = f"{name[:80]!r} has no {version_slot(version)} like its value"
                        yield Problem("UCP-E-REFERENCE", here, message)

    def require(self, atoms: Iterable[tuple[str, SlotKinds]]) -> None:
        """Refuse a pipeline that no document has: one of other atoms, or without their versions (UCP-S-005).

        >>> ucp.Pipeline("pp", (ucp.PipelineStage(1, ("w",)),)).require([("w", {"value": ("int8", (2,))})])
        """
        Pipeline.from_json(self.to_json(), at="pipeline")
        raise_first([*self.problems(at="pipeline"), *self.atom_problems(atoms, at="pipeline")])

    def stage_of(self, atom: str) -> int | None:
        """Return the number of the stage of an atom; None where it is in none.

        >>> ucp.Pipeline("pp", (ucp.PipelineStage(1, ("w",)),)).stage_of("w")
        0
        """
        return next((number for number, stage in enumerate(self.stages) if atom in stage.atoms), None)

    def misplaced(self, atom: str, layout: Layout | None) -> str:
        """Say why a slot of an atom is not read under a layout; the empty text where it is (UCP-R-034).

        >>> pipeline = ucp.Pipeline("pp", (ucp.PipelineStage(1, ("w",), ((1, 0),)),))
        >>> pipeline.misplaced("w", None)
        'a pipeline was in flight, and goes on with stage 0 of 1 on the axis pp alone; ...'
        """
        number = self.stage_of(atom) if self.is_in_flight else None
        if number is None:
            return ""
        axes = () if layout is None else layout.mesh.axes
        fits = any(type(axis) is MeshAxis and axis == MeshAxis(self.axis, len(self.stages)) for axis in axes)
        steps = () if layout is None else layout.steps
        if fits and Only(self.axis, (number,)) in steps:
            return ""
        return (
            f"a pipeline was in flight, and goes on with stage {number} of {len(self.stages)} on the axis "
            f"{self.axis} alone; save it drained to load it elsewhere"
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads.

        >>> ucp.Pipeline("pp", ()).to_json()
        {'axis': 'pp', 'stages': []}
        """
        return {"axis": self.axis, "stages": [stage.to_json() for stage in self.stages]}
