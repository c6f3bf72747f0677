"""The state document: what is not a tensor (SPEC 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ucpformat.errors import Problem
from ucpformat.jsonio import pointer
from ucpformat.model.envelope import PROCESS_IMAGES, WEIGHT_VERSIONS
from ucpformat.model.fields import array, members, object_, raise_first, string
from ucpformat.model.names import case_problems, key_problems
from ucpformat.model.pipeline import Pipeline
from ucpformat.model.process_image import ProcessImage
from ucpformat.model.references import DocumentRef

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ucpformat.jsonio import JsonValue

__all__ = ["Blob", "Optimizer", "ParameterGroup", "StateDocument"]

_NONE: Final[frozenset[str]] = frozenset()
_GROUP_MEMBERS: Final = frozenset({"atoms", "options"})
_OPTIMIZER_MEMBERS: Final = frozenset({"groups"})
_BLOB_MEMBERS: Final = frozenset({"media_type", "object"})
_STATE_MEMBERS: Final = frozenset({"values", "optimizers", "blobs"})
_STATE_OPTIONAL: Final = frozenset({"annotations", "images", "pipeline"})


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Atoms that share options; the options are tagged values, still encoded."""

    atoms: tuple[str, ...]
    options: Mapping[str, JsonValue]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> ParameterGroup:
        """Read a group; raises ``UCP-E-SCHEMA``."""
        found = members(value, _GROUP_MEMBERS, _NONE, at)
        here = pointer(at, "atoms")
        atoms = array(found["atoms"], here)
        return cls(
            tuple(
                name if type(name) is str else string(name, pointer(here, index))
                for index, name in enumerate(atoms)
            ),
            object_(found["options"], pointer(at, "options")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"atoms": list(self.atoms), "options": dict(self.options)}


@dataclass(frozen=True, slots=True)
class Optimizer:
    """The ordered parameter groups of one optimizer."""

    groups: tuple[ParameterGroup, ...]

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Optimizer:
        """Read an optimizer; raises ``UCP-E-SCHEMA``."""
        here = pointer(at, "groups")
        groups = array(members(value, _OPTIMIZER_MEMBERS, _NONE, at)["groups"], here)
        return cls(
            tuple(
                ParameterGroup.from_json(group, at=pointer(here, index)) for index, group in enumerate(groups)
            )
        )

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-NAME`` for an atom that occurs twice (UCP-D-087)."""
        seen: set[str] = set()
        for index, group in enumerate(self.groups):
            for place, name in enumerate(group.atoms):
                if name in seen:
                    here = pointer(at, "groups", index, "atoms", place)
                    yield Problem(
                        "UCP-E-NAME", here, f"{name[:80]!r} is in a group of this optimizer already"
                    )
                seen.add(name)

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"groups": [group.to_json() for group in self.groups]}


@dataclass(frozen=True, slots=True)
class Blob:
    """Opaque bytes, carried and never interpreted."""

    media_type: str
    object: DocumentRef

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Blob:
        """Read a blob's entry; raises ``UCP-E-SCHEMA``."""
        found = members(value, _BLOB_MEMBERS, _NONE, at)
        return cls(
            string(found["media_type"], pointer(at, "media_type")),
            DocumentRef.from_json(found["object"], at=pointer(at, "object")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {"media_type": self.media_type, "object": self.object.to_json()}


@dataclass(frozen=True, slots=True)
class StateDocument:
    """Values (tagged, still encoded), optimizers, blobs and process images by name, and the pipeline if any."""

    values: Mapping[str, JsonValue] = field(default_factory=dict)
    optimizers: Mapping[str, Optimizer] = field(default_factory=dict)
    blobs: Mapping[str, Blob] = field(default_factory=dict)
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)
    pipeline: Pipeline | None = None
    images: Mapping[str, ProcessImage] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> StateDocument:
        """Read a state document and check its content: ``UCP-E-SCHEMA``, then what `problems` finds."""
        state = cls.structure(value, at=at)
        raise_first(state.problems(at=at))
        return state

    @classmethod
    def structure(cls, value: JsonValue, *, at: str) -> StateDocument:
        """Read a state document without a look at its content; raises ``UCP-E-SCHEMA``."""
        found = members(value, _STATE_MEMBERS, _STATE_OPTIONAL, at)
        optimizers = object_(found["optimizers"], pointer(at, "optimizers"))
        blobs = object_(found["blobs"], pointer(at, "blobs"))
        return cls(
            object_(found["values"], pointer(at, "values")),
            {
                name: Optimizer.from_json(optimizer, at=pointer(at, "optimizers", name))
                for name, optimizer in optimizers.items()
            },
            {name: Blob.from_json(blob, at=pointer(at, "blobs", name)) for name, blob in blobs.items()},
            object_(found.get("annotations", {}), pointer(at, "annotations")),
            Pipeline.from_json(found["pipeline"], at=pointer(at, "pipeline"))
            if "pipeline" in found
            else None,
            {
                name: ProcessImage.from_json(image, at=pointer(at, "images", name))
                for name, image in object_(found.get("images", {}), pointer(at, "images")).items()
            },
        )

    def objects(self, *, at: str = "") -> Iterator[tuple[str, DocumentRef]]:
        """Yield the objects of blobs and of files of process images, each after its place in the document."""
        for name, blob in self.blobs.items():
            yield pointer(at, "blobs", name, "object"), blob.object
        for name, image in self.images.items():
            for number, file in enumerate(image.files):
                yield pointer(at, "images", name, "files", number, "object"), file.object

    def named_objects(self) -> Iterator[tuple[str, DocumentRef]]:
        """Yield the same objects, each after what people call it."""
        yield from ((name, blob.object) for name, blob in self.blobs.items())
        for name, image in self.images.items():
            yield from ((f"image {name}: {file.path}", file.object) for file in image.files)

    def features(self) -> frozenset[str]:
        """Return the read features that the document needs."""
        is_in_flight = self.pipeline is not None and self.pipeline.is_in_flight
        is_required = any(image.is_required for image in self.images.values())
        found = {WEIGHT_VERSIONS: is_in_flight, PROCESS_IMAGES: is_required}
        return frozenset(name for name, is_needed in found.items() if is_needed)

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield ``UCP-E-KEY`` for keys and paths, ``UCP-E-NAME`` for atoms in two groups, and what a pipeline has.

        Tagged values are checked by whoever decodes them, atoms' names against the index by the validator.
        """
        keys = [(one.key, f"{place}/key") for place, one in self.objects(at=at)]
        for key, place in keys:
            yield from key_problems(key, "blobs/", place)
        yield from case_problems(keys)
        for name, image in self.images.items():
            yield from image.problems(at=pointer(at, "images", name))
        for name, optimizer in self.optimizers.items():
            yield from optimizer.problems(at=pointer(at, "optimizers", name))
        if self.pipeline is not None:
            yield from self.pipeline.problems(at=pointer(at, "pipeline"))

    def tagged_values(self, *, at: str) -> Iterator[tuple[str, JsonValue]]:
        """Yield every tagged value of the document after its place."""
        for name, value in self.values.items():
            yield pointer(at, "values", name), value
        for name, optimizer in self.optimizers.items():
            for index, group in enumerate(optimizer.groups):
                for option, value in group.options.items():
                    yield pointer(at, "optimizers", name, "groups", index, "options", option), value

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        value: dict[str, JsonValue] = {
            "values": dict(self.values),
            "optimizers": {name: optimizer.to_json() for name, optimizer in self.optimizers.items()},
            "blobs": {name: blob.to_json() for name, blob in self.blobs.items()},
        }
        if self.pipeline is not None:
            value["pipeline"] = self.pipeline.to_json()
        if self.images:
            value["images"] = {name: image.to_json() for name, image in self.images.items()}
        if self.annotations:
            value["annotations"] = dict(self.annotations)
        return value
