"""What the figures depend on, and nothing that says whose machine it was."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

__all__ = ["machine_facts"]

Facts = dict[str, str | int | float | dict[str, str]]

_PACKAGES: Final = (
    "ucpformat",
    "numpy",
    "awscrt",
    "torch",
    "safetensors",
    "tensorstore",
    "zarr",
    "orbax-checkpoint",
    "jax",
    "s3fs",
    "moto",
)


def machine_facts(directory: Path, *, steady: bool = False) -> Facts:
    """Processor, memory, kernel, the file system of ``directory``, load, versions, whether the cache is kept full."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "huge_pages": _huge_pages(),
        "kernel": platform.release(),
        "file_system": _file_system(directory),
        "load_at_start": round(os.getloadavg()[0], 2),
        "steady": steady,
        "python": platform.python_version(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _huge_pages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.read_text().split("[")[1].split("]")[0] if path.exists() else "unknown"


def _file_system(directory: Path) -> str:
    """Type of the file system whose mount point is the longest that holds the directory."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    holding = [(point, kind) for point, kind in mounts if directory.resolve().is_relative_to(point)]
    return max(holding, key=lambda mount: len(mount[0]))[1] if holding else "unknown"
