"""Rows of tensors that an application says it has changed since the base of an increment (docs/increments.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.errors import error
from ucpformat.model.names import fits_glob
from ucpformat.state_dict.load_options import near

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from ucpformat.errors import UcpError
    from ucpformat.state_dict.tensors.local_tensors import LocalTensor

__all__ = ["changed_rows", "without_base"]


def without_base() -> UcpError:
    """Return what is wrong with rows that are declared without a base, ``UCP-E-MISMATCH``."""
    return error("UCP-E-MISMATCH", "changed= says which rows differ from those of a base: give base= as well")


def changed_rows(
    changed: Mapping[str, Any], tensors: Mapping[str, LocalTensor]
) -> dict[str, NDArray[np.bool_]]:
    """Return a truth value for each index of the first dimension of the tensors that are named, by dotted path.

    ``changed`` has indices, or a truth value for each, by glob: arrays, torch tensors or sequences. What several globs
    fit is changed where one of them says so. Scalars have no rows, and are compared as always.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for indices that are none of the tensor's.
        NameError: ``UCP-E-NAME`` for a glob that fits no tensor.
    """
    found: dict[str, NDArray[np.bool_]] = {}
    for glob, rows in changed.items():
        names = [name for name in tensors if fits_glob(glob, name)]
        if not names:
            meant = near(glob, list(tensors))
            hint = f"; did you mean {meant!r}?" if meant else ""
            message = (
                f"rows are declared for what is no tensor of the state, or only another name of one{hint}"
            )
            raise error("UCP-E-NAME", message, at=glob)
        for name in names:
            shape = tensors[name].shape
            if shape:
                found.setdefault(name, np.zeros(shape[0], np.bool_))
                _mark(found[name], rows, name)
    return found


def _mark(mask: NDArray[np.bool_], rows: Any, at: str) -> None:
    given = np.asarray(rows.detach().cpu() if hasattr(rows, "detach") else rows)
    if given.size == 0:
        return
    if given.dtype == np.bool_ and given.shape == mask.shape:
        mask |= given
        return
    if given.dtype.kind not in "iu" or given.ndim != 1 or given.min() < 0 or given.max() >= mask.size:
        message = (
            f"changed rows are indices from 0 to {mask.size - 1} of the first dimension, or {mask.size} truth values, "
            f"not {given.dtype} of shape {list(given.shape)}"
        )
        if given.dtype.kind in "iu" and given.ndim == 1:
            message += f" from {given.min()} to {given.max()}"
        raise error("UCP-E-MISMATCH", message, at=at)
    mask[given] = True
