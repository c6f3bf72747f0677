"""Saving and loading a nested state dict, by one process or by many: `ucpformat.save` and `ucpformat.load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal

from ucpformat.distributed.group import Group, agreed
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.save import SaveOptions, SaveReport, save_together
from ucpformat.frameworks.live.loading import LoadOptions, fill_state, stored_slots, stored_values
from ucpformat.frameworks.live.local_tensors import Held
from ucpformat.frameworks.live.objects import WITHOUT_TORCH
from ucpformat.frameworks.live.per_rank import AskEach, asked
from ucpformat.frameworks.live.reading import LoadReport
from ucpformat.frameworks.live.state import live_state
from ucpformat.frameworks.live.stateful import unwrapped
from ucpformat.frameworks.live.tensor_parts import allowed_types, put_together, restore_with
from ucpformat.frameworks.live.torch_group import group_of
from ucpformat.frameworks.live.values import to_torch
from ucpformat.frameworks.state.paths import StatePath, build, dotted
from ucpformat.model.values import decode
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.storage.store import is_remote
from ucpformat.views import SlotView
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compression_rule import Compression
    from ucpformat.model.root import Storage

__all__ = ["load", "save", "save_state"]


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    group: object = None,
    layouts: Mapping[str, Held] | None = None,
    storage: Storage = "packed",
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    compressor: Compression | None = None,
    step: int | None = None,
    annotations: Mapping[str, JsonValue] | None = None,
    report: Callable[[SaveReport], None] | None = None,
) -> str:
    """Save a nested state dict of arrays, torch tensors, DTensors and plain values; returns the root digest.

    Under torch.distributed every rank of ``group`` (the default group, unless given) calls this with what it holds,
    and all of them make one checkpoint: a plain tensor counts as the same on every rank that has it, a DTensor as
    its placements say, and one that ``layouts`` names, by its dotted path, as is said there. Each rank writes a
    share of what it holds; nothing but descriptions and receipts is sent, and, in storage plain and with a compressor,
    parts of chunks that several ranks hold.
    A module, an optimizer beside its module, and whatever else has ``state_dict()`` and ``load_state_dict()`` may stand
    at the top level themselves.
    Values of ``model`` and states of ``optim`` (as ``get_state_dict`` gives them) share one atom per parameter.
    Tensors that are the same memory (tied weights) are stored once, with aliases.
    ``annotations`` go into the root document: notes that no reader depends on, by reversed domain names. ``report`` is
    told what this rank wrote and sent, and what the whole takes.

    Raises:
        UcpError: on all ranks the same, and then there is no checkpoint: ``UCP-E-EXISTS`` for a committed checkpoint
            at ``path``; ``UCP-E-OBJECT``, ``UCP-E-DTYPE``, ``UCP-E-MISMATCH`` or ``UCP-E-NAME``, naming the entry,
            for what cannot be stored; ``UCP-E-COVER`` for what no rank holds.
    """
    options = SaveOptions(storage, chunk_bytes, step, annotations=annotations or {})
    done = save_state(path, state, options, group=group, layouts=layouts, compressor=compressor)
    if report is not None:
        report(done)
    return done.digest


def save_state(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    options: SaveOptions,
    *,
    group: object = None,
    layouts: Mapping[str, Held] | None = None,
    compressor: Compression | None = None,
) -> SaveReport:
    """As `save`, and says what this rank wrote."""
    together = group_of(group)

    def describe() -> LocalState:
        return live_state(unwrapped(state)[0], rank=together.rank, layouts=layouts, compressor=compressor)

    return save_together(path, describe, together, options)


def load(
    path: str | os.PathLike[str],
    state: dict[str, Any] | None = None,
    *,
    group: object = None,
    layouts: Mapping[str, Held] | None = None,
    only: str | Iterable[str] | Callable[[str], bool] | None = None,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    cast: bool = False,
    strict: bool = True,
    tensors: Literal["numpy", "torch"] = "numpy",
    verify: bool = True,
    read_once: bool | Literal["auto"] = "auto",
    per_rank: AskEach = None,
    report: Callable[[LoadReport], None] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into ``state``, in place, or as a new nested dict.

    With ``state``, its tensors are filled, its other entries replaced, and all of them must be in the checkpoint
    with the same logical shape and data type. A whole top-level entry that the state leaves out (``optim``) stays in
    the checkpoint; a part of one that it leaves out is an error unless ``strict`` is False. Under torch.distributed
    every rank of ``group`` calls this, with a state and ``layouts`` as for `save`, whatever the job was that saved;
    each reads what it holds. On request, by dotted path in the state: ``only`` takes the entries that match one of
    some globs, or a function; ``rename`` gives the name that the checkpoint has for an entry, by a mapping or a
    function; ``cast`` converts data types.
    Values that were saved as `PerRank` come back as this rank's own; in a job of another size as their ``on_resize``
    says, or as ``per_rank`` does, which is a rule or a function of `PerRankValues`, position and size, for all of them
    or by dotted path.
    With ``read_once`` ranks that hold the same read a share of it each and send it to one another, so that each
    stored byte is fetched once for all of them; without, each reads all that it holds. ``"auto"`` does so where the
    checkpoint is at a URL of a remote store, and not at a path. ``report`` is told what was read and sent.
    Without ``state`` everything is loaded, by this process alone, tensors as ``tensors`` says: tensor subclasses as
    dicts of their parts, or, with ``torch``, made anew where ``torch.serialization.add_safe_globals`` allows their
    classes. Returns the state.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs, on all ranks.
        UcpError: what opening and reading raise.
    """
    if state is None:
        with open_checkpoint(path, verify=verify) as checkpoint:
            return _load_new(checkpoint, tensors)
    once = is_remote(path) if read_once == "auto" else read_once
    together = group_of(group)
    place = (list(together.ranks).index(together.rank), len(together.ranks))
    options = LoadOptions(
        dict(layouts or {}), _chosen(only), _renamed(rename), cast, strict, once, place, asked(per_rank)
    )
    done = _load_into(state, path, together, options, verify=verify)
    if report is not None:
        report(done)
    return state


def _load_into(
    state: dict[str, Any],
    path: str | os.PathLike[str],
    group: Group,
    options: LoadOptions,
    *,
    verify: bool,
) -> LoadReport:
    with ExitStack() as stack:
        begun: list[tuple[Checkpoint, dict[str, Any], dict[str, Callable[[Any], None]]]] = []

        def begin() -> bytes:
            checkpoint = stack.enter_context(open_checkpoint(path, verify=verify))
            plain, back = unwrapped(state)
            begun.append((checkpoint, dict(plain), back))
            return b""

        agreed(group, begin)
        ((checkpoint, found, back),) = begun
        report = fill_state(found, checkpoint, group, options)
    for key in state:
        if key not in back:
            state[key] = found[key]
    for key, take in back.items():
        take(found[key])
    return report


def _chosen(only: str | Iterable[str] | Callable[[str], bool] | None) -> Callable[[str], bool]:
    if callable(only):
        return only
    if only is None:
        return lambda _: True
    globs = [only] if isinstance(only, str) else list(only)
    return lambda name: any(fnmatchcase(name, glob) for glob in globs)


def _renamed(rename: Mapping[str, str] | Callable[[str], str] | None) -> Callable[[str], str]:
    if callable(rename):
        return rename
    names = dict(rename or {})
    return lambda name: names.get(name, name)


def _load_new(checkpoint: Checkpoint, tensors: Literal["numpy", "torch"]) -> dict[str, Any]:
    make: Callable[[SlotView], Any] = (
        (lambda slot: to_torch(slot.read(), slot.dtype.name)) if tensors == "torch" else SlotView.read
    )
    leaves: dict[StatePath, object] = {path: make(slot) for path, slot in stored_slots(checkpoint).items()}
    allowed = allowed_types() if tensors == "torch" else {}
    restore = restore_with(allowed) if tensors == "torch" else WITHOUT_TORCH
    leaves.update(
        (path, decode(value, at=dotted(path), restore=restore))
        for path, value in stored_values(checkpoint).items()
    )
    return build(put_together(leaves, allowed))
