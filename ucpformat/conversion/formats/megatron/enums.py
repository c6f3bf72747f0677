"""The enumerations of Megatron's arguments, as data: the name of the class and the member's value.

Python pickles a member as a call of its class with its value (``enum.Enum.__reduce_ex__``). Here that makes a record
and nothing more; it is written back as the same call, by name, so that the class need not be there either.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.unpickle import Constructor, Globals

__all__ = ["EnumMember", "NamingPickle", "NamingPickler", "enum_globals", "is_enum"]

# megatron/core 0.8 to 0.16 and megatron/training; `signal.Signals` is the argument ``exit_signal``.
_CLASSES: Final = {
    "megatron.core.enums": ("ModelType", "Fp8Recipe", "Fp4Recipe"),
    "megatron.core.transformer.enums": (
        *("AttnBackend", "AttnMaskType", "AttnType", "CudaGraphScope", "LayerType", "ModelType"),
    ),
    "megatron.core.rerun_state_machine": (
        *("RerunDiagnostic", "RerunMode", "RerunState", "RerunValidationStatus"),
    ),
    "megatron.core.dist_checkpointing.validation": ("StrictHandling",),
    "megatron.core.datasets.utils": ("Split",),
    "megatron.model.enums": ("AttnMaskType", "AttnType", "LayerType", "ModelType", "PositionEmbeddingType"),
    "megatron.legacy.model.enums": ("AttnMaskType", "AttnType", "LayerType", "ModelType"),
    "signal": ("Signals",),
}
_KINDS: Final = frozenset(f"{module}.{name}" for module, names in _CLASSES.items() for name in names)
_VALUE: Final = "value"


def is_enum(kind: str) -> bool:
    """Return whether a type's name is that of an enumeration that is carried."""
    return kind in _KINDS


def enum_globals() -> Globals:
    """Return what a pickle may name: each class takes one number or string, and makes a record of it."""
    return {
        (module, name): _record(f"{module}.{name}") for module, names in _CLASSES.items() for name in names
    }


def _record(kind: str) -> Constructor:
    def call(arguments: tuple[Any, ...]) -> object:
        (value,) = arguments
        if type(value) not in (int, str):
            raise ValueError(f"a member of {kind} is a number or a string")
        return Instance(kind, {_VALUE: value})

    return Constructor(kind, call)


@dataclass(frozen=True, slots=True)
class EnumMember:
    """A member to write: the class's full name, and the value."""

    kind: str
    value: int | str

    @classmethod
    def of_state(cls, kind: str, state: object) -> EnumMember | None:
        """Return the member of a record as `enum_globals` made it; None for anything else."""
        value = state.get(_VALUE) if isinstance(state, dict) and len(state) == 1 else None
        if not is_enum(kind) or not isinstance(value, int | str) or isinstance(value, bool):
            return None
        return cls(kind, value)


class NamingPickler(pickle._Pickler):  # Python's own, in Python: the one whose opcodes can be added to
    """A pickler that writes an `EnumMember` as the call of a class that need not be installed."""

    dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

    def save_member(self: Any, member: EnumMember) -> None:
        """Write the class's name, its one argument, and the call."""
        module, _, name = member.kind.rpartition(".")
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())
        self.save((member.value,))
        self.write(pickle.REDUCE)
        self.memoize(member)

    dispatch[EnumMember] = save_member


class NamingPickle:
    """What ``torch.save`` takes as its ``pickle_module``."""

    Pickler = NamingPickler
    __name__ = "pickle"
