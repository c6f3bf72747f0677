"""The envelope of the root document (SPEC 7.1), negotiation of its features (SPEC 7.2), and extensions (SPEC 20)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from ucpformat.errors import Problem, error
from ucpformat.jsonio import pointer
from ucpformat.model.fields import boolean, members, object_

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.references import Pack

__all__ = [
    "ENVELOPE_MEMBERS",
    "FEATURES",
    "FORMAT",
    "FORMAT_VERSION",
    "READ_FEATURES",
    "Envelope",
    "Extension",
    "Feature",
    "check_envelope",
    "check_version",
    "feature_set_problems",
    "needed_features",
    "negotiate",
]

FORMAT: Final = "ucp"
FORMAT_VERSION: Final = 0
ENVELOPE_MEMBERS: Final = frozenset(
    {"format", "format_version", "read_features", "write_features", "extensions", "annotations"}
)
_EXTENSION_MEMBERS: Final = frozenset({"must_understand", "safe_to_copy", "configuration"})


@dataclass(frozen=True, slots=True)
class Extension:
    """One extension: whether a stranger has to refuse it, whether one may copy it, and what it says."""

    must_understand: bool = True
    safe_to_copy: bool = False
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Extension:
        """Read an extension object; raises ``UCP-E-SCHEMA``."""
        found = members(value, frozenset(), _EXTENSION_MEMBERS, at)
        return cls(
            boolean(found.get("must_understand", True), pointer(at, "must_understand")),
            boolean(found.get("safe_to_copy", False), pointer(at, "safe_to_copy")),
            object_(found.get("configuration", {}), pointer(at, "configuration")),
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads, with all three members."""
        return {
            "must_understand": self.must_understand,
            "safe_to_copy": self.safe_to_copy,
            "configuration": dict(self.configuration),
        }


@dataclass(frozen=True, slots=True)
class Envelope:
    """The six members whose names and types never change."""

    format_version: int = FORMAT_VERSION
    read_features: tuple[str, ...] = ()
    write_features: tuple[str, ...] = ()
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    annotations: Mapping[str, JsonValue] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: JsonValue, *, at: str) -> Envelope:
        """Read the envelope of a document that `check_envelope` has let pass; other members are passed over.

        Raises ``UCP-E-SCHEMA`` for what an extension object says.
        """
        found: dict[str, Any] = value  # type: ignore[assignment]  # check_envelope has seen to the types
        return cls(
            found["format_version"],
            tuple(found["read_features"]),
            tuple(found["write_features"]),
            {
                name: Extension.from_json(extension, at=pointer(at, "extensions", name))
                for name, extension in found["extensions"].items()
            },
            found["annotations"],
        )

    def to_json(self) -> dict[str, JsonValue]:
        """Return the six members, in the order of the specification."""
        return {
            "format": FORMAT,
            "format_version": self.format_version,
            "read_features": list(self.read_features),
            "write_features": list(self.write_features),
            "extensions": {name: extension.to_json() for name, extension in self.extensions.items()},
            "annotations": dict(self.annotations),
        }

    def problems(self, *, at: str) -> Iterator[Problem]:
        """Yield feature lists that are unsorted, repeat themselves or share a feature (UCP-D-007, UCP-D-008)."""
        for member, features in (
            ("read_features", self.read_features),
            ("write_features", self.write_features),
        ):
            if list(features) != sorted(set(features)):
                yield Problem(
                    "UCP-E-FEATURE-SET",
                    pointer(at, member),
                    "features must be sorted and free of duplicates",
                )
        for feature in sorted(set(self.read_features) & set(self.write_features)):
            yield Problem(
                "UCP-E-FEATURE-SET",
                pointer(at, "write_features"),
                f"{feature!r} is listed as a read feature already; a feature has one class",
            )


def check_envelope(value: JsonValue, *, at: str) -> None:
    """Raise ``UCP-E-FORMAT`` unless the six members are there with their types, whatever the version."""
    if type(value) is not dict:
        raise error("UCP-E-FORMAT", "a root document is a JSON object", at=at)
    missing = ENVELOPE_MEMBERS - value.keys()
    if missing:
        raise error("UCP-E-FORMAT", f"the envelope lacks {', '.join(sorted(missing))}", at=at)
    if value["format"] != FORMAT:
        raise error(
            "UCP-E-FORMAT", f"'format' must be {FORMAT!r}: this is another format", at=pointer(at, "format")
        )
    if type(value["format_version"]) is not int:
        raise error("UCP-E-FORMAT", "'format_version' must be an integer", at=pointer(at, "format_version"))
    for member in ("read_features", "write_features"):
        features = value[member]
        if type(features) is not list or not all(type(feature) is str for feature in features):
            raise error("UCP-E-FORMAT", f"{member!r} must be an array of strings", at=pointer(at, member))
    for member in ("extensions", "annotations"):
        if type(value[member]) is not dict:
            raise error("UCP-E-FORMAT", f"{member!r} must be an object", at=pointer(at, member))


def check_version(value: JsonValue, *, at: str) -> dict[str, JsonValue]:
    """Return a document with a sound envelope (`check_envelope`), or raise ``UCP-E-VERSION`` for another version."""
    check_envelope(value, at=at)
    found: dict[str, JsonValue] = value  # type: ignore[assignment]  # check_envelope has seen to the types
    if found["format_version"] != FORMAT_VERSION:
        message = (
            f"this software reads version {FORMAT_VERSION} of the format, not {found['format_version']}: "
            "use one that does"
        )
        raise error("UCP-E-VERSION", message, at=pointer(at, "format_version"))
    return found


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the registry: which programs must understand it, and when content needs it."""

    name: str
    kind: Literal["read", "write"]
    needed_when: str


# Sorted by name; the table of SPEC 7.2.
FEATURES: Final = (
    Feature("blosc", "read", "a slot has the compressor `blosc`"),
    Feature("incremental", "read", "a pack of the pack list is shared (section 16.4)"),
    Feature(
        "process-images",
        "read",
        "an entry of the state document's `images` is `required` (section 15.4)",
    ),
    Feature("row-overwrite", "read", "a segment has a row set (section 16.4)"),
    Feature(
        "weight-versions",
        "read",
        "a stage of the state document's `pipeline` has a minibatch in flight (section 15.3)",
    ),
    Feature("zstd", "read", "a slot has the compressor `zstd`"),
)
READ_FEATURES: Final = frozenset(feature.name for feature in FEATURES if feature.kind == "read")


PROCESS_IMAGES: Final = "process-images"
WEIGHT_VERSIONS: Final = "weight-versions"
STATE_FEATURES: Final = frozenset({PROCESS_IMAGES, WEIGHT_VERSIONS})
"""Features that the state document decides about."""


def needed_features(
    compressors: Iterable[Compressor | None],
    packs: Iterable[Pack] = (),
    *,
    has_row_sets: bool = False,
    of_state: frozenset[str] = frozenset(),
) -> frozenset[str]:
    """Return the features that slots with these compressors, or none, these packs and row sets, and the state need."""
    names = {compressor.name for compressor in compressors if compressor is not None}
    if any(pack.shared for pack in packs):
        names.add("incremental")
    if has_row_sets:
        names.add("row-overwrite")
    return frozenset((names | of_state) & READ_FEATURES)


def feature_set_problems(envelope: Envelope, needed: frozenset[str], *, at: str) -> Iterator[Problem]:
    """Yield ``UCP-E-FEATURE-SET`` for features needed and undeclared, or declared and not needed (UCP-D-009).

    Of a read feature that is not defined here nobody can say whether it is needed (UCP-V-005).
    """
    read = needed & READ_FEATURES
    for member, declared, wanted in (
        ("read_features", frozenset(envelope.read_features) & READ_FEATURES, read),
        ("write_features", frozenset(envelope.write_features), needed - read),
    ):
        here = pointer(at, member)
        for feature in sorted(wanted - declared):
            yield Problem("UCP-E-FEATURE-SET", here, f"the content needs {feature!r}: declare it")
        for feature in sorted(declared - wanted):
            yield Problem("UCP-E-FEATURE-SET", here, f"nothing in the content needs {feature!r}: remove it")


def negotiate(
    read_features: Iterable[str],
    extensions: Mapping[str, JsonValue],
    *,
    features: frozenset[str],
    known_extensions: frozenset[str],
    at: str,
) -> None:
    """Refuse what this reader does not implement, before anything else of the root is looked at.

    ``extensions`` are as they stand in the document; all but ``"must_understand": false`` are obligatory.

    Raises ``UCP-E-FEATURE``: a read feature that is not in ``features``.
    Raises ``UCP-E-EXTENSION``: an extension that is not in ``known_extensions``.
    """
    unknown = [feature for feature in read_features if feature not in features]
    if unknown:
        names = ", ".join(unknown)
        message = f"reading this checkpoint takes features that this software lacks: {names}; use a newer one"
        raise error("UCP-E-FEATURE", message, at=pointer(at, "read_features"))
    for name, extension in extensions.items():
        optional = type(extension) is dict and extension.get("must_understand") is False
        if name not in known_extensions and not optional:
            raise error(
                "UCP-E-EXTENSION",
                f"the extension {name!r} has to be understood, and this software does not know it",
                at=pointer(at, "extensions", name),
            )
