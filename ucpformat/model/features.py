"""Features: what a checkpoint needs of whoever reads or changes it (SPEC 7.2), and their negotiation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.errors import Problem, error
from ucpformat.jsonio import pointer

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compressor
    from ucpformat.model.envelope import Envelope

__all__ = ["FEATURES", "READ_FEATURES", "Feature", "feature_set_problems", "needed_features", "negotiate"]


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature of the registry: who has to understand it, and when content needs it."""

    name: str
    kind: Literal["read", "write"]
    needed_when: str


# Sorted by name; the table of SPEC 7.2.
FEATURES: Final = (
    Feature("blosc", "read", "a slot has the compressor `blosc`"),
    Feature("zstd", "read", "a slot has the compressor `zstd`"),
)
READ_FEATURES: Final = frozenset(feature.name for feature in FEATURES if feature.kind == "read")


def needed_features(compressors: Iterable[Compressor | None]) -> frozenset[str]:
    """The features that slots with these compressors, or none, need."""
    names = {compressor.name for compressor in compressors if compressor is not None}
    return frozenset(names & READ_FEATURES)


def feature_set_problems(envelope: Envelope, needed: frozenset[str], *, at: str) -> Iterator[Problem]:
    """``UCP-E-FEATURE-SET`` for features needed and undeclared, or declared and not needed (UCP-D-009).

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
