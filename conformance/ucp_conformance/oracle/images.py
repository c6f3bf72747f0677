"""Process images (SPEC section 15.4)."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from ucp_conformance.oracle.problem import RefusalError, pointer
from ucp_conformance.oracle.store import is_key

__all__ = [
    "check_keys",
    "check_paths",
    "described",
    "files",
    "keys",
    "needed",
    "objects_of",
    "require_restored",
]


def files(state: dict[str, Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield the name of each image, the number of each of its files, and the file."""
    for name, image in state.get("images", {}).items():
        for number, file in enumerate(image["files"]):
            yield name, number, file


def objects_of(state: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yield the objects of blobs and of files of process images, after what holds each in the state document."""
    for name, blob in state["blobs"].items():
        yield ("blobs", name), blob["object"]
    for name, number, file in files(state):
        yield ("images", name, "files", number), file["object"]


def keys(state: dict[str, Any]) -> set[str]:
    """Return the keys of these objects."""
    return {reference["key"] for _, reference in objects_of(state)}


def described(state: dict[str, Any]) -> dict[str, Any]:
    """Return the images of a state document without the places of their bytes."""
    return {
        name: {**image, "files": [{**file, "object": None} for file in image["files"]]}
        for name, image in state.get("images", {}).items()
    }


def needed(state: dict[str, Any]) -> set[str]:
    """Return the features that the images of a state document need."""
    return {"process-images" for image in state.get("images", {}).values() if image["required"]}


def check_keys(state: dict[str, Any], key: str) -> None:
    """Refuse keys of these objects that break UCP-D-010, UCP-D-012 or UCP-D-014."""
    taken: set[str] = set()
    for place, reference in objects_of(state):
        mine = reference["key"]
        if not is_key(mine) or not mine.startswith("blobs/") or mine.lower() in taken:
            raise RefusalError("UCP-E-KEY", pointer(key, *place, "object", "key"))
        taken.add(mine.lower())


def check_paths(state: dict[str, Any], key: str) -> None:
    """Refuse paths that break UCP-D-148 or UCP-D-149."""
    taken: dict[str, set[str]] = {}
    for name, number, file in files(state):
        at = pointer(key, "images", name, "files", number, "path")
        path, others = file["path"].lower(), taken.setdefault(name, set())
        beside = any(f"{one}/".startswith(f"{path}/") or f"{path}/".startswith(f"{one}/") for one in others)
        if not is_key(file["path"]) or beside:
            raise RefusalError("UCP-E-KEY", at)
        others.add(path)


def require_restored(state: dict[str, Any], restored: Collection[str]) -> None:
    """Refuse to go on without an image that is required (UCP-R-035)."""
    for name, image in state.get("images", {}).items():
        if image["required"] and name not in restored:
            raise RefusalError("UCP-E-MISMATCH", "", f"the image {name} is to be restored first")
