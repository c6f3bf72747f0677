"""Profiles of the layout vocabulary: what a check takes of it, and what an implementation claims (SPEC section 6)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

__all__ = ["PROFILES", "kinds_of", "profiles_of", "with_profiles"]

PROFILES: Final[Mapping[str, tuple[str, ...]]] = {
    "core": ("shard", "blocks", "join", "pad", "flatten", "only"),
    "buffers": ("concat",),
    "views": ("view", "permute"),
    "ragged": (),
    "reductions": ("partial", "scale", "local"),
}
"""The kinds of steps of each profile; *ragged* has axes with `by` instead."""


def profiles_of(params: Mapping[str, Any]) -> list[str]:
    """Return the profiles that the layouts of a request take, in the order of `PROFILES`; none without a layout."""
    found = {profile for layout in _layouts(params) for profile in _taken(layout)}
    return [profile for profile in PROFILES if profile in found]


def with_profiles(check: Mapping[str, Any]) -> dict[str, Any]:
    """Return a check with the profiles of its layouts; level Reshard takes core, and level Full all of them."""
    profiles = profiles_of(check["params"])
    if not profiles:
        return dict(check)
    beyond = check["level"] == "reshard" and profiles != ["core"]
    return {**check, "level": "full" if beyond else check["level"], "profiles": profiles}


def kinds_of(profiles: Sequence[str]) -> list[str]:
    """Return the kinds of steps of some profiles."""
    return [kind for profile, kinds in PROFILES.items() if profile in profiles for kind in kinds]


def _layouts(params: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    slots = (slot for atom in params.get("atoms", ()) for slot in atom["slots"].values())
    return (holder for holder in (params, *slots) if "mesh" in holder)


def _taken(layout: Mapping[str, Any]) -> Iterator[str]:
    yield "core"
    if "place" in layout:
        yield "buffers"
    if any("by" in axis for axis in layout["mesh"]["axes"]):
        yield "ragged"
    kinds = {step["kind"] for step in layout["steps"]}
    yield from (profile for profile, mine in PROFILES.items() if kinds & set(mine))
