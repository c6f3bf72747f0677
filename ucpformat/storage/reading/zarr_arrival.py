"""Registers the extension data types (SPEC section 11.2) with zarr-python when a process imports it, and not before.

Loading zarr takes longer than all of ours, and few of our commands need it. Yet whoever opens a plain checkpoint with
zarr-python shall need no more than ``import ucpformat``, before or after ``import zarr``.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["await_zarr"]

_ZARR: Final = "zarr"


def await_zarr() -> None:
    """Register them now if zarr is loaded, or else right after it will have been."""
    if _ZARR in sys.modules:
        _register()
    else:
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    import_module("ucpformat.storage.zarr_dtypes")


class _Finder:
    """Finds zarr where the other finders do, and nothing else."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _ZARR:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(self, spec.loader)  # type: ignore[assignment] # has what is called
                return spec
        return None


class _Loader:
    """Loads zarr as its own loader does, puts that back in its place, and then registers."""

    def __init__(self, finder: _Finder, own: Loader) -> None:
        self._finder = finder
        self._own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        self._own.exec_module(module)
        if self._finder in sys.meta_path:
            sys.meta_path.remove(self._finder)
        _register()
