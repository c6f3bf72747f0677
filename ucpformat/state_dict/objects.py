"""Live Python objects of the running process as tagged values, and back (SPEC section 15.1).

They have the names and the content that `torch_dcp.tagged` gives them, so that one loads what the other imported.
Torch is used where the caller has imported it, and imported only where torch objects are asked for.
"""

from __future__ import annotations

import datetime
import io
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.distributed.values import OPAQUE_TYPE
from ucpformat.errors import UcpError, error
from ucpformat.model.dtype import dtype
from ucpformat.model.values import NamedValue, TensorValue
from ucpformat.state_dict.tensors.local_tensors import elements_of, tensor_dtype, to_torch
from ucpformat.tensor_files.revive import FACTORIES, revive
from ucpformat.tensor_files.tagged import RESTORE, default_dict, has_own_name

if TYPE_CHECKING:
    from ucpformat.model.values import Restore

__all__ = ["WITHOUT_TORCH", "WITH_TORCH", "extend", "refusal_of"]


def extend(obj: object) -> NamedValue | TensorValue | None:
    """Encode plain objects of Python, numpy and torch that have no tag of their own, for `values.encode`."""
    if type(obj) is bytearray:
        return NamedValue("builtins.bytearray", bytes(obj))
    if type(obj) is io.BytesIO:
        return NamedValue(OPAQUE_TYPE, obj.getvalue())
    if type(obj) is range:
        return NamedValue("builtins.range", [obj.start, obj.stop, obj.step])
    if type(obj) is Counter:
        return NamedValue("collections.Counter", dict(obj))
    if type(obj) is defaultdict:
        return _default_dict(obj)
    if type(obj) is datetime.timezone and not has_own_name(obj):
        return NamedValue("datetime.timezone", obj.utcoffset(None))
    if isinstance(obj, np.dtype) and obj.names is None:
        return NamedValue("numpy.dtype", obj.str)
    found = _torch_object(obj)
    if found is None and (refusal := refusal_of(obj)):
        raise error("UCP-E-OBJECT", refusal)
    return found


def refusal_of(obj: object) -> str:
    """Return what to do about an object that is no plain data, such as people do put into states; empty for others."""
    remedy = _remedy(obj)
    kind = type(obj)
    return f"a {kind.__module__}.{kind.__qualname__} is no plain data; {remedy}" if remedy else ""


def _remedy(obj: object) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(obj, torch.Generator):
        return (
            "save its get_state(), a tensor, which set_state() takes back; as ucp.PerRank where ranks differ"
        )
    if torch is not None and isinstance(obj, torch.optim.Optimizer):
        return "put it at the top level of the state, with its module beside it, or give its state_dict()"
    if hasattr(obj, "state_dict") and hasattr(obj, "load_state_dict"):
        return "put it at the top level of the state, or give its state_dict()"
    if type(obj).__module__.partition(".")[0] in ("jax", "jaxlib"):
        return (
            "give numpy.asarray(array), or, where processes hold parts, the local part as a numpy array and its "
            "layout by layouts= (docs/vocabulary.md)"
        )
    if isinstance(obj, np.random.Generator | np.random.BitGenerator | np.random.RandomState):
        return "save its state: .bit_generator.state is a dict of plain data"
    if isinstance(obj, random.Random):
        return "save its getstate(), which setstate() takes back"
    if callable(obj):
        return "code is not stored; leave it out, and give what it needs as data"
    return ""


def _default_dict(obj: defaultdict[Any, Any]) -> NamedValue | None:
    factory = obj.default_factory
    name = None if factory is None else getattr(factory, "__name__", "")
    if name not in FACTORIES or FACTORIES[name] is not factory:
        return None
    return NamedValue("collections.defaultdict", [name, dict(obj)])


def _torch_object(obj: object) -> NamedValue | TensorValue | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    if isinstance(obj, torch.Size):
        return NamedValue("torch.Size", list(obj))
    if isinstance(obj, torch.dtype):
        return NamedValue("torch.dtype", str(obj).removeprefix("torch."))
    if isinstance(obj, torch.device):
        return NamedValue("torch.device", str(obj))
    if isinstance(obj, torch.layout):
        return NamedValue("torch.layout", str(obj))
    if isinstance(obj, torch.Tensor):
        array = elements_of(obj, at="")
        return TensorValue(tensor_dtype(obj, at=""), array.shape, array.tobytes())
    return None


def _array(content: TensorValue) -> Any:
    return np.frombuffer(bytearray(content.data), dtype(content.dtype).numpy).reshape(content.shape)


def _tensor(content: TensorValue) -> object:
    return to_torch(_array(content), content.dtype)


def _filled(content: Any) -> object:
    table = default_dict(content)
    return defaultdict(FACTORIES[table.factory], table)


def _opaque(content: Any) -> object:
    if type(content) is not bytes:
        raise TypeError("expected are bytes")
    return io.BytesIO(content)


def _revived(name: str) -> Callable[[Any], object]:
    def restore(content: Any) -> object:
        try:
            return revive(RESTORE[name](content), name)
        except UcpError as refusal:
            raise ValueError(refusal.message) from None

    return restore


_CONTAINERS: Final = {
    "collections.Counter": RESTORE["collections.Counter"],
    "collections.defaultdict": _filled,
    OPAQUE_TYPE: _opaque,
}
_LEAVES: Final = {name: _revived(name) for name in RESTORE if name not in (*_CONTAINERS, "$tensor")}

WITHOUT_TORCH: Final[Restore] = {
    **_CONTAINERS,
    **{name: restore for name, restore in _LEAVES.items() if not name.startswith("torch.")},
    "$tensor": _array,
}
"""For `values.decode`: tensors come as numpy arrays, torch's objects as named values."""

WITH_TORCH: Final[Restore] = {**_CONTAINERS, **_LEAVES, "$tensor": _tensor}
"""For `values.decode`: torch's objects come back as they were."""
