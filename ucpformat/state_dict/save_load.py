"""Saving and loading a nested state dict, by one process or by many: `ucpformat.save` and `ucpformat.load`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, Literal

from ucpformat.distributed.group import Group, agreed
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.save import SaveOptions, SaveReport, prepare_save
from ucpformat.distributed.snapshot import double_buffered
from ucpformat.errors import error, naming
from ucpformat.model.values import decode
from ucpformat.reader import Checkpoint, open_checkpoint
from ucpformat.state_dict.changed_rows import without_base
from ucpformat.state_dict.keys.paths import StatePath, build, dotted
from ucpformat.state_dict.load_options import LoadOptions, Only, Rename, without_effect
from ucpformat.state_dict.loading import fill_state
from ucpformat.state_dict.matching import stored_slots, stored_values
from ucpformat.state_dict.objects import WITHOUT_TORCH
from ucpformat.state_dict.per_rank import AskEach
from ucpformat.state_dict.reading import LoadReport
from ucpformat.state_dict.state import live_state
from ucpformat.state_dict.stateful import Unwrapped, as_state, state_to_save, unwrapped
from ucpformat.state_dict.tensor_parts import allowed_types, put_together, restore_with
from ucpformat.state_dict.tensors.local_tensors import TensorLayout, to_torch
from ucpformat.state_dict.torch_group import group_of
from ucpformat.storage.stores.urls import is_remote
from ucpformat.views import SlotView
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from torch.nn import Module

    from ucpformat.distributed.save_options import Replicas
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compression
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.root import Storage

__all__ = ["load", "save", "save_state"]


def save(
    path: str | os.PathLike[str],
    state: Mapping[str, Any] | Module,
    *,
    group: object = None,
    layouts: Mapping[str, TensorLayout] | None = None,
    storage: Storage = "packed",
    chunk_bytes: int = DEFAULT_CHUNK_BYTES,
    compressor: Compression | None = None,
    step: int | None = None,
    annotations: Mapping[str, JsonValue] | None = None,
    replicas: Replicas = "compare",
    pipeline: Pipeline | None = None,
    base: str | os.PathLike[str] | None = None,
    changed: Mapping[str, Any] | None = None,
) -> SaveReport:
    """Save a nested state dict of arrays, torch tensors, DTensors and plain values, or a module.

    Under torch.distributed every rank of ``group`` (the default group, unless given) calls this with what it holds,
    and all of them make one checkpoint: a plain tensor counts as the same on every rank that has it, a DTensor as
    its placements say, and one that ``layouts`` names, by its dotted path, as is said there. Each rank writes a
    share of what it holds; nothing but descriptions, digests and receipts is sent, and, in storage plain and with a
    compressor, parts of chunks that several ranks hold.
    Ranks compare their copies of plain tensors: of those that differ, such as buffers under DistributedDataParallel,
    the first rank's is saved, so that the checkpoint has the state of that rank; with ``replicas="check"`` they are an
    error, and with ``"trust"`` nobody looks. Replicas of DTensors are compared with ``"check"`` alone.
    A module, an optimizer beside its module, and whatever else has ``state_dict()`` and ``load_state_dict()`` may stand
    at the top level themselves. A module alone is saved as ``{"model": module}`` is.
    Values of ``model`` and states of ``optim`` (as ``get_state_dict`` gives them) share one atom per parameter.
    Tensors that are the same memory (tied weights) are stored once, with aliases.
    ``annotations`` go into the root document: notes that no reader depends on, by reversed domain names.
    ``pipeline``, the same on all ranks, says which minibatches are in flight in the stages of a pipeline that stashes
    its weights, whose earlier versions the state has below ``versions`` (`Pipeline`). Only the same stages load that.
    ``base`` is an earlier checkpoint on the same file system, or in the same object store: what is equal is shared with
    it by hard links, or by copies that the store makes, compared byte for byte, and only the rest is written. The new
    checkpoint is as complete as any, and stays whole when the base is removed. It has the storage of its base, and its
    ``chunk_bytes`` unless they are given.
    ``changed`` has, by dotted path or glob, the rows of tensors that were changed since the base was saved: indices of
    the first dimension, or a truth value for each; every rank says so of what it holds. All other rows of these tensors
    are taken from the base unseen, so that rows that were forgotten are as they were then.

    Returns:
        What this rank wrote and sent, what the whole checkpoint takes, its root digest, and how long it took.

    Raises:
        UcpError: on all ranks the same, and then there is no checkpoint: ``UCP-E-EXISTS`` for a committed checkpoint
            at ``path``; ``UCP-E-OBJECT``, ``UCP-E-DTYPE``, ``UCP-E-MISMATCH`` or ``UCP-E-NAME``, naming the entry,
            for what cannot be stored; ``UCP-E-COVER`` for what no rank holds; ``UCP-E-NOT-FOUND``, ``UCP-E-STORE`` or
            ``UCP-E-MISMATCH`` for a base that is not there, has no file system, or other chunks; ``UCP-E-NAME`` and
            ``UCP-E-MISMATCH`` for changed rows of no tensor, or that it does not have.

    >>> model = torch.nn.Linear(4, 4)
    >>> optimizer = torch.optim.AdamW(model.parameters())
    >>> report = ucp.save("run/step-1000.ucp", {"model": model, "optim": optimizer, "epoch": 3}, step=1000)
    >>> ucp.load("run/step-1000.ucp", only="epoch")
    {'epoch': 3}
    >>> ucp.save("model.ucp", model).nbytes
    80
    >>> ucp.save("again.ucp", model, base="model.ucp").stored.data
    0
    """
    if changed and base is None:
        raise without_base()
    options = SaveOptions(
        storage,
        chunk_bytes,
        step,
        annotations=annotations or {},
        replicas=replicas,
        base=None if base is None else os.fspath(base),
        pipeline=pipeline,
    )
    return save_state(
        path, state, options, group=group, layouts=layouts, compressor=compressor, changed=changed
    )


def save_state(
    path: str | os.PathLike[str],
    state: Mapping[str, Any] | Module,
    options: SaveOptions,
    *,
    group: object = None,
    layouts: Mapping[str, TensorLayout] | None = None,
    compressor: Compression | None = None,
    changed: Mapping[str, Any] | None = None,
) -> SaveReport:
    """Save as `save` does, with options that are put together already."""
    together = group_of(group)

    def describe() -> LocalState:
        return live_state(
            state_to_save(state),
            rank=together.rank,
            layouts=layouts,
            compressor=compressor,
            pipeline=options.pipeline,
            changed=changed,
        )

    with naming(path):
        saving = prepare_save(path, describe, together, options)
        if not saving.local.devices:
            return saving.run()
        from ucpformat.state_dict.tensors.device_copier import DeviceCopier

        with closing(DeviceCopier()) as copier:
            return saving.run(lambda: double_buffered(saving, copier))


def load(
    path: str | os.PathLike[str],
    state: dict[str, Any] | Module | None = None,
    *,
    group: object = None,
    layouts: Mapping[str, TensorLayout] | None = None,
    only: str | Iterable[str] | Callable[[str], bool] | None = None,
    rename: Mapping[str, str] | Callable[[str], str] | None = None,
    cast: bool = False,
    strict: bool = True,
    tensors: Literal["numpy", "torch"] | None = None,
    verify: bool = True,
    restored: Iterable[str] = (),
    read_once: bool | Literal["auto"] = "auto",
    per_rank: AskEach = None,
    report: Callable[[LoadReport], None] | None = None,
) -> dict[str, Any]:
    """Load a checkpoint into ``state``, in place, or as a new nested dict; a module stands for ``{"model": module}``.

    With ``state``, its tensors are filled, its other entries replaced, and all of them must be in the checkpoint
    with the same logical shape and data type. A whole top-level entry that the state leaves out (``optim``) stays in
    the checkpoint; a part of one that it leaves out is an error. With ``strict=False`` either side may have more, as
    with torch's ``load_state_dict``: what the checkpoint lacks stays as it was, ``report`` is told the names, and what
    differs in shape or data type is still an error.
    Under torch.distributed every rank of ``group`` calls this, with a state and ``layouts`` as for `save`, whatever
    the job was that saved; each reads what it holds.
    On request, by dotted path in the state: ``only`` takes the entries that match one of some globs (``*`` also
    matches dots), with everything below them, or those of which a function says so; ``rename`` gives the name that
    the checkpoint has for an entry, by a mapping of names, or of whole components at their front, or by a function;
    ``cast`` converts data types. What is given by name has to fit something, on one rank at least.
    Values that were saved as `PerRank` come back as this rank's own; in a job of another size as their ``on_resize``
    says, or as ``per_rank`` does, which is a rule or a function of `PerRankValues`, position and size, for all of them
    or by dotted path.
    With ``read_once`` ranks that hold the same read a share of it each and send it to one another, so that each
    stored byte is fetched once for all of them; without, each reads all that it holds. ``"auto"`` does so where the
    checkpoint is at a URL of a remote store, and not at a path. ``report`` is told what was read, sent and left.
    Without ``state`` everything is loaded, or what ``only`` takes, by this process alone, as numpy arrays or as
    ``tensors="torch"``: tensor subclasses as dicts of their parts, or, with ``torch``, made anew where
    ``torch.serialization.add_safe_globals`` allows their classes. Options that say how to fill a state are then an
    error. Without ``verify`` checksums are not looked at. ``restored`` names the required process images that have been
    restored: a checkpoint that has such images is not loaded without them.

    Returns:
        The state, filled, or the new one.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming every entry that is missing, unexpected or differs, and options that
            would be without effect, on all ranks.
        UcpError: what opening and reading raise.

    >>> report = ucp.save("run.ucp", {"model": {"w": np.ones(2, np.float32)}, "epoch": 3})
    >>> state = {"model": {"w": np.zeros(2, np.float32)}, "epoch": 0}
    >>> state = ucp.load("run.ucp", state)  # filled in place
    >>> state["model"]["w"].tolist(), state["epoch"]
    ([1.0, 1.0], 3)
    >>> ucp.load("run.ucp", only="model")  # a new dict of a part
    {'model': {'w': array([1., 1.], dtype=float32)}}
    """
    if read_once not in (True, False, "auto"):
        raise error("UCP-E-MISMATCH", f'read_once= is True, False or "auto", not {read_once!r}')
    if state is None:
        fills = {
            "group": group is not None,
            "layouts": bool(layouts),
            "rename": bool(rename),
            "cast": cast,
            "strict": not strict,
            "read_once": read_once is True,
            "per_rank": per_rank is not None,
            "report": report is not None,
        }
        if given := [name for name, is_given in fills.items() if is_given]:
            message = (
                f"{given[0]}= says how to fill a state, and there is none: give the state, or leave it out"
            )
            raise error("UCP-E-MISMATCH", message)
        if tensors not in (None, "numpy", "torch"):
            raise error("UCP-E-MISMATCH", f'tensors= is "numpy" or "torch", not {tensors!r}')
        with open_checkpoint(path, verify=verify, restored=restored) as checkpoint:
            return _load_new(checkpoint, Only(only), as_torch=tensors == "torch")
    state = as_state(state)
    if tensors is not None:
        message = "tensors= says what to make without a state: the tensors of this one are filled"
        raise error("UCP-E-MISMATCH", message)
    once = is_remote(path) if read_once == "auto" else read_once
    together = group_of(group)
    position = (list(together.ranks).index(together.rank), len(together.ranks))

    def options() -> LoadOptions:
        return LoadOptions(
            Only(only), Rename(rename), dict(layouts or {}), per_rank, cast, strict, once, position
        )

    with naming(path):
        done = _load_into(state, path, together, options, verify=verify, restored=restored)
    if report is not None:
        report(done)
    return state


def _load_into(
    state: dict[str, Any],
    path: str | os.PathLike[str],
    group: Group,
    options: Callable[[], LoadOptions],
    *,
    verify: bool,
    restored: Iterable[str],
) -> LoadReport:
    objects: dict[str, Unwrapped] = {}
    with ExitStack() as stack:
        begun: list[tuple[Checkpoint, LoadOptions]] = []

        def begin() -> bytes:
            checkpoint = stack.enter_context(open_checkpoint(path, verify=verify, restored=restored))
            checkpoint.require_restored()
            begun.append((checkpoint, options()))
            objects.update(unwrapped(state))
            return b""

        filled: set[str] = set()
        try:
            agreed(group, begin)
            ((checkpoint, chosen),) = begun
            found = {**state, **{key: one.content for key, one in objects.items()}}
            report, filled = fill_state(found, checkpoint, group, chosen)
        finally:
            for key, one in objects.items():
                if str(key) not in filled:
                    one.leave()
    for key in state:
        if key not in objects:
            state[key] = found[key]
        elif str(key) in filled:
            objects[key].take(found[key])
    return report


def _load_new(checkpoint: Checkpoint, only: Only, *, as_torch: bool) -> dict[str, Any]:
    checkpoint.require_restored()
    checkpoint.require_drained()
    slots, values = stored_slots(checkpoint), stored_values(checkpoint)
    names = [dotted(path) for path in (*slots, *values)]
    if (fault := without_effect([{"only": only.fits(names)}])) is not None:
        raise fault
    if only.is_given and not any(map(only, names)):
        raise error("UCP-E-MISMATCH", "nothing was loaded: only= takes no entry of the checkpoint")
    make: Callable[[SlotView], Any] = (
        (lambda slot: to_torch(slot.read(), slot.dtype.name)) if as_torch else SlotView.read
    )
    leaves: dict[StatePath, object] = {path: make(slot) for path, slot in slots.items() if only(dotted(path))}
    allowed = allowed_types() if as_torch else {}
    restore = restore_with(allowed) if as_torch else WITHOUT_TORCH
    leaves.update(
        (path, decode(value, at=dotted(path), restore=restore))
        for path, value in values.items()
        if only(dotted(path))
    )
    return build(put_together(leaves, allowed))
