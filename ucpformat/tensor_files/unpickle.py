"""A pickle reader that cannot run code: an own small machine, and an allow-list of plain constructors.

Python's unpickler imports the globals that a pickle names and calls them. This machine imports nothing and
calls nothing but `Constructor` objects from the table it is given; everything else a pickle names is refused
with ``UCP-E-PICKLE``. It is written out rather than derived from ``pickle.Unpickler`` because that class also
trusts the pickle where no global is involved: a memo index of 2**32 allocates its table, and hashing a deeply
or exponentially nested tuple overflows the C stack or never ends.

Source of the opcodes: CPython's ``pickletools`` (protocols 2 to 5; the text opcodes of protocol 0, which no
checkpoint needs, are refused).
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.numpy_values import NumpyArrayDraft, NumpyDtypeDraft
from ucpformat.tensor_files.object_tree import Instance, Limits, check_hashable, refused, weight
from ucpformat.tensor_files.stand_ins import ConfigurationDraft

__all__ = ["Constructor", "Globals", "unpickle", "unpickle_first"]

_MAX_INT_BYTES = 1024

Globals = Mapping[tuple[str, str], object]


@dataclass(frozen=True, slots=True)
class Constructor:
    """A function of ours that stands for a global: called with the arguments of REDUCE or NEWOBJ."""

    name: str
    call: Callable[[tuple[Any, ...]], object]


def unpickle(
    data: bytes,
    allowed: Globals,
    *,
    at: str,
    persistent: Callable[[object], object] | None = None,
    limits: Limits | None = None,
) -> object:
    """Build the object that ``data`` describes from plain types and from what ``allowed`` holds.

    ``allowed`` maps (module, name) to a `Constructor`, or to any other value that then stands for the global
    itself. ``persistent`` resolves persistent ids. The result may share and nest without bound: call
    `check_tree` before walking it. Raises ``UCP-E-PICKLE`` (``at`` and the global are named) and
    ``UCP-E-LIMIT``; runs no foreign code.
    """
    found, end = unpickle_first(data, allowed, at=at, persistent=persistent, limits=limits)
    if end != len(data):
        raise refused("the pickle does not end where it says it does", at)
    return found


def unpickle_first(
    data: bytes,
    allowed: Globals,
    *,
    at: str,
    persistent: Callable[[object], object] | None = None,
    limits: Limits | None = None,
    start: int = 0,
) -> tuple[object, int]:
    """Build the object of the first pickle in ``data`` from ``start`` on, and say where that ends; as `unpickle`."""
    limits = limits or Limits()
    if len(data) > limits.pickle_bytes:
        raise error(
            "UCP-E-LIMIT", f"the pickle has {len(data)} bytes, the limit is {limits.pickle_bytes}", at=at
        )
    machine = _Machine(data, allowed, persistent, limits.nodes, at, start)
    try:
        return machine.run(), machine.pos
    except UcpError as refusal:
        if refusal.at:
            raise
        raise error(
            refusal.code, refusal.message, at=at
        ) from None  # by a constructor, which knows no location
    except (IndexError, struct.error):
        raise refused("the pickle is truncated or malformed", at) from None
    except (ValueError, TypeError, KeyError, OverflowError, MemoryError, RecursionError) as problem:
        raise refused(f"the pickle is malformed ({type(problem).__name__}: {problem})", at) from None


class _Machine:
    """The stack machine: one method per opcode."""

    def __init__(
        self,
        data: bytes,
        allowed: Globals,
        persistent: Callable[[object], object] | None,
        budget: int,
        at: str,
        start: int = 0,
    ) -> None:
        self.data = data
        self.pos = start
        self.allowed = allowed
        self.persistent = persistent
        self.budget = budget
        self.at = at
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> object:
        data, handlers = self.data, _HANDLERS
        while True:
            code = data[self.pos]
            self.pos += 1
            if code == 0x2E:  # STOP
                if self.marks or len(self.stack) != 1:
                    raise refused("the pickle does not end where it says it does", self.at)
                return self.stack[0]
            handler = handlers.get(code)
            if handler is None:
                raise refused(f"the pickle uses opcode {code:#04x}, which no checkpoint needs", self.at)
            handler(self)

    def take(self, count: int) -> bytes:
        start = self.pos
        self.pos = start + count
        if self.pos > len(self.data):
            raise refused("the pickle is truncated", self.at)
        return self.data[start : self.pos]

    def number(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self.data, self.pos)
        self.pos += layout.size
        return value

    def line(self) -> str:
        end = self.data.find(b"\n", self.pos)
        if end < 0:
            raise refused("the pickle is truncated", self.at)
        text = self.data[self.pos : end].decode("utf-8")
        self.pos = end + 1
        return text

    def pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        return items

    def push_global(self, module: object, name: object) -> None:
        if type(module) is not str or type(name) is not str:  # not shown: it may nest and share without bound
            raise refused("the pickle asks for a global by something that is not a name", self.at)
        if (module, name) not in self.allowed:
            raise refused(
                f"the pickle asks for {module:.100}.{name:.100}, which is not on the allow-list;"
                " nothing was run. Save the object as plain data (numbers, strings, lists, dicts, tensors)",
                self.at,
            )
        self.stack.append(self.allowed[(module, name)])

    def construct(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        if type(function) is not Constructor or not isinstance(arguments, tuple):
            raise refused("the pickle calls something that is not a constructor on the allow-list", self.at)
        value = function.call(arguments)
        # A few bytes of pickle can ask for a copy of something large, again and again.
        self.budget -= weight(value)
        if self.budget < 0:
            raise error("UCP-E-LIMIT", "the pickle expands to too much data", at=self.at)
        self.stack.append(value)

    def build(self) -> None:
        state = self.stack.pop()
        target = self.stack[-1]
        if type(target) is Instance and target.state is None:
            target.state = state
        elif isinstance(target, NumpyDtypeDraft | NumpyArrayDraft):
            self.stack[-1] = target.finish(state)
            self._replace_in_memo(target, self.stack[-1])
        elif isinstance(target, ConfigurationDraft):
            self.stack[-1] = target.finish(state)
        elif type(target) is OrderedDict and isinstance(state, dict) and state.keys() <= {"_metadata"}:
            pass  # the version table that Module.state_dict() hangs on its result; not part of the state
        else:
            raise refused(f"the pickle sets the state of a {type(target).__name__}, which has none", self.at)

    def _replace_in_memo(self, draft: object, value: object) -> None:
        # The pickler memoises an object right before its state: only the newest entries can be the one.
        for index in islice(reversed(self.memo), 64):
            if self.memo[index] is draft:
                self.memo[index] = value
                return

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(items) % 2:
            raise refused("the pickle puts items into something that is not a dict", self.at)
        for index in range(0, len(items), 2):
            key = items[index]
            if type(key) is not str:
                check_hashable(key, self.at)
            target[key] = items[index + 1]

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise refused("the pickle appends to something that is not a list", self.at)
        target.extend(items)

    def add_items(self) -> None:
        items = self.pop_mark()
        target = self.stack[-1]
        if type(target) is not set:
            raise refused("the pickle adds to something that is not a set", self.at)
        for item in items:
            check_hashable(item, self.at)
        target.update(items)

    def persistent_id(self) -> None:
        if self.persistent is None:
            raise refused("the pickle refers to data outside itself", self.at)
        self.stack.append(self.persistent(self.stack.pop()))

    def long(self, count: int) -> None:
        if count < 0 or count > _MAX_INT_BYTES:
            raise error(
                "UCP-E-LIMIT", f"an integer of {count} bytes; the limit is {_MAX_INT_BYTES}", at=self.at
            )
        self.stack.append(int.from_bytes(self.take(count), "little", signed=True))


_U1, _U2, _U4, _U8 = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I"), struct.Struct("<Q")
_I4, _F8 = struct.Struct("<i"), struct.Struct(">d")
_Handler = Callable[[_Machine], None]


def _push(value: object) -> _Handler:
    return lambda m: m.stack.append(value)


def _number(layout: struct.Struct) -> _Handler:
    return lambda m: m.stack.append(m.number(layout))


def _text(layout: struct.Struct) -> _Handler:
    return lambda m: m.stack.append(m.take(m.number(layout)).decode("utf-8", "surrogatepass"))


def _bytes(layout: struct.Struct) -> _Handler:
    return lambda m: m.stack.append(m.take(m.number(layout)))


def _get(layout: struct.Struct) -> _Handler:
    def get(m: _Machine) -> None:
        value = m.memo[m.number(layout)]
        m.stack.append(value.value if type(value) is ConfigurationDraft and value.is_finished else value)

    return get


def _put(layout: struct.Struct) -> _Handler:
    def put(m: _Machine) -> None:
        m.memo[m.number(layout)] = m.stack[-1]

    return put


def _tuple(count: int) -> _Handler:
    def build(m: _Machine) -> None:
        if len(m.stack) < count:
            raise IndexError
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return build


def _mark_tuple(m: _Machine) -> None:
    items = m.pop_mark()  # first: it changes m.stack
    m.stack.append(tuple(items))


def _mark_list(m: _Machine) -> None:
    items = m.pop_mark()
    m.stack.append(items)


def _mark(m: _Machine) -> None:
    m.marks.append(m.stack)
    m.stack = []


def _memoize(m: _Machine) -> None:
    m.memo[len(m.memo)] = m.stack[-1]


def _frozen(m: _Machine) -> None:
    items = m.pop_mark()
    for item in items:
        check_hashable(item, m.at)
    m.stack.append(frozenset(items))


def _dict(m: _Machine) -> None:
    items = m.pop_mark()
    m.stack.append({})
    m.set_items(items)


def _protocol(m: _Machine) -> None:
    if m.number(_U1) > 5:
        raise refused("the pickle's protocol is newer than 5", m.at)


def _frame(m: _Machine) -> None:
    m.number(_U8)  # only a hint for buffered reading


_HANDLERS: Final[dict[int, _Handler]] = {
    0x80: _protocol,
    0x95: _frame,
    0x28: _mark,
    0x4E: _push(None),
    0x88: _push(True),
    0x89: _push(False),
    0x4B: _number(_U1),
    0x4D: _number(_U2),
    0x4A: _number(_I4),
    0x47: _number(_F8),
    0x8A: lambda m: m.long(m.number(_U1)),
    0x8B: lambda m: m.long(m.number(_I4)),
    0x8C: _text(_U1),
    0x58: _text(_U4),
    0x8D: _text(_U8),
    0x43: _bytes(_U1),
    0x42: _bytes(_U4),
    0x8E: _bytes(_U8),
    0x96: lambda m: m.stack.append(bytearray(m.take(m.number(_U8)))),
    0x29: _push(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    0x74: _mark_tuple,
    0x5D: lambda m: m.stack.append([]),
    0x6C: _mark_list,
    0x61: lambda m: m.extend([m.stack.pop()]),
    0x65: lambda m: m.extend(m.pop_mark()),
    0x7D: lambda m: m.stack.append({}),
    0x64: _dict,
    0x73: lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    0x75: lambda m: m.set_items(m.pop_mark()),
    0x8F: lambda m: m.stack.append(set()),
    0x90: lambda m: m.add_items(),
    0x91: _frozen,
    0x68: _get(_U1),
    0x6A: _get(_U4),
    0x71: _put(_U1),
    0x72: _put(_U4),
    0x94: _memoize,
    0x63: lambda m: m.push_global(m.line(), m.line()),
    0x93: lambda m: m.push_global(*_two(m)),
    0x52: lambda m: m.construct(),
    0x81: lambda m: m.construct(),
    0x62: lambda m: m.build(),
    0x51: lambda m: m.persistent_id(),
}


def _two(m: _Machine) -> tuple[object, object]:
    name = m.stack.pop()
    return m.stack.pop(), name
