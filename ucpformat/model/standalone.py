"""Documents that stand alone beside checkpoints (SPEC 14): an envelope and a ``kind``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from ucpformat import jsonio
from ucpformat.errors import Problem, error
from ucpformat.jsonio import pointer
from ucpformat.model.envelope import (
    ENVELOPE_MEMBERS,
    Envelope,
    check_version,
    feature_set_problems,
    negotiate,
)
from ucpformat.model.fields import members

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["parse_standalone", "standalone_members"]

_BASE: Final = ENVELOPE_MEMBERS | {"kind"}


def parse_standalone(data: bytes, *, at: str) -> JsonValue:
    """Parse a document that stands alone, up to its envelope (UCP-R-022); no feature or extension is known.

    Raises, in this order, UCP-E-LIMIT, UCP-E-JSON, UCP-E-FORMAT, UCP-E-VERSION, UCP-E-FEATURE,
    UCP-E-EXTENSION.
    """
    value = jsonio.loads(data, at=at)
    found = check_version(value, at=at)
    negotiate(
        cast("list[str]", found["read_features"]),
        cast("dict[str, JsonValue]", found["extensions"]),
        features=frozenset(),
        known_extensions=frozenset(),
        at=at,
    )
    return value


def standalone_members(
    value: JsonValue,
    kind: str,
    required: frozenset[str],
    optional: frozenset[str],
    faults: list[Problem],
    *,
    at: str,
) -> dict[str, JsonValue]:
    """Return the members of a document of its own ``kind``, closed.

    Raises UCP-E-FORMAT, UCP-E-VERSION, UCP-E-SCHEMA; declared features, which none of them needs, go to
    ``faults``.
    """
    check_version(value, at=at)
    found = members(value, _BASE | required, optional, at)
    if found["kind"] != kind:
        message = f"this is a document of another kind than {kind!r}"
        raise error("UCP-E-SCHEMA", message, at=pointer(at, "kind"))
    faults += feature_set_problems(Envelope.from_json(value, at=at), frozenset(), at=at)
    return found
