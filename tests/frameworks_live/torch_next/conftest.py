"""The room is for a torch that has ``CheckpointableTensor``; the torch of `make test` has none."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _has_protocol() -> bool:
    try:
        major, minor, *_ = version("torch").split(".")
    except PackageNotFoundError:
        return False
    return (int(major), int(minor)) >= (2, 15)


collect_ignore_glob = [] if _has_protocol() else ["test_*.py"]
