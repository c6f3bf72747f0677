"""What a universal checkpoint holds, seen as DeepSpeed would: parameters in groups, frozen ones, buffers, values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.formats.deepspeed.files.companions import blob_files
from ucpformat.errors import error
from ucpformat.geometry import decompose_flat_range
from ucpformat.model.dtype import dtype
from ucpformat.model.values import NamedValue, decode
from ucpformat.state_dict.keys.origins import SOURCE, slot_path
from ucpformat.state_dict.keys.paths import StatePath, build, dotted
from ucpformat.tensor_files.out_files import OutFile, text_file
from ucpformat.tensor_files.tagged import RESTORE
from ucpformat.tensor_files.torch_archive_writer import Call, OutTensor

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.conversion.contract.content import AtomContent, Content, SlotContent
    from ucpformat.jsonio import JsonValue

__all__ = ["Group", "Outline", "Range", "live"]

_BLOCK: Final = 8 << 20
"""Bytes of a tensor that are held at a time."""

_FLOATS: Final = ("float16", "bfloat16", "float32")


@dataclass(frozen=True, slots=True)
class Range:
    """Elements ``[start, stop)`` of a slot in row-major order; None instead of a slot stands for zeros."""

    slot: SlotContent | None
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Group:
    """A parameter group: names in order, and options as plain objects."""

    names: Sequence[str]
    options: Mapping[str, Any]


class Outline:
    """Content with the questions that DeepSpeed's files answer. Raises ``UCP-E-MISMATCH`` where it cannot tell."""

    def __init__(self, content: Content, buffers: frozenset[str] | None = None) -> None:
        self._content = content
        self._named_buffers = buffers
        self._tensors: dict[tuple[str, str, str], OutTensor] = {}
        self.values = {
            name: live(decode(value, at=name, restore=RESTORE))
            for name, value in content.state.values.items()
        }

    @cached_property
    def groups(self) -> Sequence[Group]:
        """The parameter groups of the one optimizer."""
        optimizers = self._content.state.optimizers
        if len(optimizers) != 1:
            raise error(
                "UCP-E-MISMATCH",
                f"DeepSpeed has one optimizer with its parameter groups, the checkpoint has {len(optimizers)}",
            )
        (optimizer,) = optimizers.values()
        return [
            Group(
                group.atoms,
                {key: live(decode(value, at=key, restore=RESTORE)) for key, value in group.options.items()},
            )
            for group in optimizer.groups
        ]

    @cached_property
    def note(self) -> Mapping[str, JsonValue]:
        """What the importer noted of the saving job."""
        annotation = self._content.state.annotations.get(SOURCE)
        return annotation if isinstance(annotation, dict) else {}

    @cached_property
    def trained(self) -> frozenset[str]:
        """Names of the parameters that the optimizer has."""
        return frozenset(name for group in self.groups for name in group.names)

    @cached_property
    def module(self) -> Mapping[str, AtomContent]:
        """Parameters and buffers: all atoms with a value but those of `client`."""
        return {
            name: view
            for name, view in self._content.items()
            if "value" in view and name not in self._outside
        }

    @cached_property
    def client(self) -> Mapping[str, Any]:
        """Tensors that a state dict had outside the model, such as states of generators, nested as there.

        In the module, where DeepSpeed has names of its own alone, they would make its loader raise.
        """
        return build({path: self.tensor(name, "value") for name, path in self._outside.items()})

    @cached_property
    def _outside(self) -> Mapping[str, StatePath]:
        """Atoms that lay elsewhere than what the optimizer trains, and where."""
        paths = {
            name: slot_path(name, "value", view["value"].spec.annotations)
            for name, view in self._content.items()
            if "value" in view
        }
        fronts = {_front(name, path) for name, path in paths.items() if name in self.trained}
        return {name: path for name, path in paths.items() if fronts and _front(name, path) not in fronts}

    def in_order(self, names: Iterable[str]) -> list[str]:
        """Return names as the parameter groups list them, then others: the order in which readers may number them."""
        places = {name: place for place, name in enumerate(n for group in self.groups for n in group.names)}
        return sorted(names, key=lambda name: places.get(name, len(places)))

    @property
    def step(self) -> int:
        """How many optimizer steps were taken, 0 where that is not known."""
        return self._content.step or 0

    @property
    def shared(self) -> dict[str, str]:
        """Tied names, and the name that each is kept under."""
        return {alias: name for name, view in self.module.items() for alias in view.aliases}

    def role(self, name: str) -> object:
        """Return what the importer knew a value to be: ``buffer``, ``frozen``, or None."""
        source = self.module[name].annotations.get(SOURCE)
        return source.get("role") if isinstance(source, dict) else None

    def is_buffer(self, name: str) -> bool:
        """Return whether a value that the optimizer does not have is a buffer, and not a frozen parameter."""
        if self._named_buffers is not None:
            return name in self._named_buffers
        role = self.role(name)
        if role not in ("buffer", "frozen"):
            if self.module[name]["value"].dtype.name not in _FLOATS:
                return True  # no gradient could flow into it: no parameter
            raise error(
                "UCP-E-MISMATCH",
                f"{name!r} may be a buffer or a frozen parameter, which ZeRO-3 keeps apart; "
                "name the buffers: --set buffers=NAME,NAME (or buffers= for none)",
            )
        return role == "buffer"

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a parameter."""
        view = self.module.get(name)
        if view is None:
            raise error("UCP-E-MISMATCH", f"the optimizer has {name!r}, and no value of it is there")
        return view["value"].shape

    def master(self, name: str) -> SlotContent:
        """Return the copy of a parameter that the optimizer updates."""
        view = self.module[name]
        return view["master"] if "master" in view else view["value"]

    def states(self, name: str) -> dict[str, SlotContent]:
        """Return optimizer states with the shape of the parameter."""
        return {slot: view for slot, view in self._others(name) if not self._is_number(name, slot, view)}

    def numbers(self, name: str) -> dict[str, Any]:
        """Return optimizer states that are a single number: a 0-d tensor, or what Python has where that was one."""
        numbers: dict[str, Any] = {}
        for slot, view in self._others(name):
            if self._is_number(name, slot, view):
                source = view.annotations.get(SOURCE)
                is_python = isinstance(source, dict) and source.get("number") in ("int", "float")
                numbers[slot] = view.read().item() if is_python else self.tensor(name, slot)
        return numbers

    def left_out(self, ranks: int) -> list[Lost]:
        """Return what DeepSpeed's files have no place for, where ``ranks`` of them hold values."""
        lost = []
        for name, view in self._content.items():
            if "value" not in view:
                why = "DeepSpeed keeps states of parameters, and no value of this one is there"
            elif name not in self.trained:
                why = "the optimizer does not have this parameter"
            else:
                continue
            lost += [Lost(f"{name}/{slot}", why) for slot in view if slot != "value"]
        for name in self.values:
            scope, _, rest = name.partition("/")
            number = rest.partition("/")[0]
            if scope == "mp_rank" or (scope == "rank" and number.isdecimal() and int(number) >= ranks):
                lost.append(Lost(f"values/{name}", "the files of that rank are not written"))
        return lost + [
            Lost(f"blobs/{name}", "it can be no file beside DeepSpeed's")
            for name in self._content.blobs
            if name not in blob_files(self._content.blobs, "")
        ]

    def companions(self, tag: str) -> list[OutFile]:
        """Return the files that lay beside DeepSpeed's own; ``tag`` is the name of the tag's directory."""
        places = blob_files(self._content.blobs, tag)
        return [text_file(place, self._content.blobs[name][1]) for name, place in places.items()]

    def _others(self, name: str) -> Iterator[tuple[str, SlotContent]]:
        shape = self.shape(name)
        for slot, view in self.module[name].items():
            if slot in ("value", "master"):
                continue
            if view.shape not in (shape, ()):
                raise error(
                    "UCP-E-MISMATCH",
                    f"{name!r}: the state {slot!r} of shape {list(view.shape)} has no place in a flat group",
                )
            yield slot, view

    def _is_number(self, name: str, slot: str, view: SlotContent) -> bool:
        return view.shape == () and (self.shape(name) != () or slot == "step")

    def tensor(self, name: str, slot: str, kind: str | None = None) -> OutTensor:
        """Return a whole slot, cast to ``kind``; the same object at every call."""
        view = self._content[name][slot]
        kind = kind or view.dtype.name
        key = (name, slot, kind)
        if key not in self._tensors:
            ranges = [Range(view, 0, math.prod(view.shape))]
            # Files are made in several threads, and all of them get the first.
            made = OutTensor(kind, view.shape, lambda: self.blocks(ranges, kind))
            self._tensors.setdefault(key, made)
        return self._tensors[key]

    def flat(self, ranges: Sequence[Range], kind: str) -> OutTensor:
        """Return a 1-d tensor of ranges, one after another."""
        length = sum(part.stop - part.start for part in ranges)
        return OutTensor(kind, (length,), lambda: self.blocks(ranges, kind))

    def blocks(self, ranges: Sequence[Range], kind: str) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of ranges, cast to ``kind``, a block at a time."""
        wanted = dtype(kind)
        step = _BLOCK // wanted.item_bytes
        for part in ranges:
            for start in range(part.start, part.stop, step):
                stop = min(start + step, part.stop)
                if part.slot is None:
                    yield np.zeros((stop - start) * wanted.item_bytes, np.uint8)
                    continue
                yield self._elements(part.slot, start, stop).astype(wanted.numpy, copy=False).view(np.uint8)

    def _elements(self, slot: SlotContent, start: int, stop: int) -> NDArray[Any]:
        elements = np.empty(stop - start, slot.dtype.numpy)
        done = 0
        for box in decompose_flat_range(slot.shape, start, stop):
            part = elements[done : done + box.size].reshape(box.shape)
            slot.read_box(box, part)
            done += box.size
        return elements


def _front(name: str, path: StatePath) -> str:
    """Return what stands before a parameter's name in a state dict: the name of the model's entry, or nothing."""
    return dotted(path).removesuffix(name)


def live(value: object) -> object:
    """Return a decoded value for `torch_writer`: DeepSpeed's own objects become calls of its classes again."""
    if isinstance(value, NamedValue):
        if not value.type.startswith("deepspeed.") and value.type != "argparse.Namespace":
            raise error("UCP-E-OBJECT", f"an object of type {value.type} cannot be written for DeepSpeed")
        module, _, name = value.type.rpartition(".")
        state = live(value.value)
        return Call(module, name, (), state if isinstance(state, dict) else {}, makes_instance=True)
    if type(value) in (list, tuple):
        return type(value)(live(item) for item in value)  # type: ignore[attr-defined, call-arg]
    if isinstance(value, dict) and type(value).__module__ != "ucpformat.tensor_files.stand_ins":
        return type(value)((key, live(item)) for key, item in value.items())
    return value
