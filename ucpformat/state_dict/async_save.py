"""Saving a nested state dict in the background: `ucpformat.async_save` and `ucpformat.AsyncSaver`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from ucpformat.distributed.background import BackgroundSaver, WhenBusy
from ucpformat.distributed.background_save import AsyncSave
from ucpformat.distributed.group import Group, another
from ucpformat.distributed.kept import Kept
from ucpformat.distributed.save import SaveOptions
from ucpformat.distributed.snapshot import HostCopier
from ucpformat.errors import error
from ucpformat.state_dict.changed_rows import without_base
from ucpformat.state_dict.fences import fences_of
from ucpformat.state_dict.state import StateForm, live_state
from ucpformat.state_dict.stateful import state_to_save
from ucpformat.state_dict.torch_group import TorchGroup, group_of, own_group
from ucpformat.writer import DEFAULT_CHUNK_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from torch.nn import Module

    from ucpformat.distributed.local_state import LocalState
    from ucpformat.distributed.save_options import Replicas
    from ucpformat.jsonio import JsonValue
    from ucpformat.model.compressor import Compression
    from ucpformat.model.pipeline import Pipeline
    from ucpformat.model.root import LogPosition, Storage
    from ucpformat.state_dict.fences import Fence
    from ucpformat.state_dict.tensors.local_tensors import TensorLayout

__all__ = ["AsyncSave", "AsyncSaver", "WhenBusy", "async_save", "begin_save"]


class AsyncSaver:
    """Saves in the background, one after another; a context manager that waits for the last one.

    Every rank of ``group`` (the default group, unless given) makes one, and makes the same calls. Two gloo groups are
    made for it, so that nothing of it meets the collectives of training. A `Group` is used itself for what is said
    during calls, and makes another one for the rest.
    A snapshot lies in host memory that is kept from save to save: as much as this rank has to write, or
    ``arena_bytes`` at most, at least one chunk; `save` then returns when the rest has found room.
    With ``fence`` the tensors of an optimizer are copied while training goes on, and the optimizer waits, before its
    next step, for what is not copied yet: an optimizer, a `torch.optim.swa_utils.AveragedModel`, or several of them.
    What none of these changes is copied before `save` returns. With ``"staged"`` nothing of the state may
    change before `AsyncSave.staged` has returned, but buffers of modules and arrays of numpy. Copies behind the call
    take ``bandwidth`` bytes a second at most, as long as nothing waits for them.

    >>> state = {"w": np.ones(4, np.float32)}
    >>> with ucp.AsyncSaver() as saver:
    ...     for step in (1, 2):
    ...         save = saver.save(f"step-{step}.ucp", state, step=step)
    ...         state["w"] += 1  # the snapshot is taken
    >>> ucp.load("step-2.ucp")["w"]
    array([2., 2., 2., 2.], dtype=float32)
    """

    def __init__(
        self,
        *,
        group: object = None,
        arena_bytes: int | None = None,
        fence: Fence | None = None,
        bandwidth: float | None = None,
    ) -> None:
        fences_of(fence)
        if bandwidth is not None and fence is None:
            message = "bandwidth= is about copies behind the call of a save: give fence= as well"
            raise error("UCP-E-MISMATCH", message, at="bandwidth")
        self._group = own_group(group)
        self._fence = fence
        self._form: Kept[StateForm] = Kept()
        self._saver = BackgroundSaver(
            self._group, arena_bytes=arena_bytes, copier=_copier(), bandwidth=bandwidth
        )

    @property
    def arena_bytes(self) -> int:
        """Host memory that is kept for snapshots: the most that was ever needed.

        >>> with ucp.AsyncSaver() as saver:
        ...     report = saver.save("step-1.ucp", {"w": np.ones(4)}).wait()
        ...     saver.arena_bytes >= report.nbytes
        True
        """
        return self._saver.arena.nbytes

    def save(
        self,
        path: str | os.PathLike[str],
        state: Mapping[str, Any] | Module,
        *,
        layouts: Mapping[str, TensorLayout] | None = None,
        storage: Storage = "packed",
        chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        compressor: Compression | None = None,
        step: int | None = None,
        annotations: Mapping[str, JsonValue] | None = None,
        replicas: Replicas = "compare",
        pipeline: Pipeline | None = None,
        log: LogPosition | None = None,
        base: str | os.PathLike[str] | None = None,
        changed: Mapping[str, Any] | None = None,
        when_busy: WhenBusy = "wait",
        then: Callable[[], object] | None = None,
        fence: Fence | None = None,
    ) -> AsyncSave:
        """Save as `ucpformat.async_save` does; ``then`` is called in the background, after the commit, on every rank.

        ``fence`` is that of the saver, unless given.

        >>> with ucp.AsyncSaver() as saver:
        ...     save = saver.save("step-1.ucp", {"w": np.ones(4)}, step=1)
        >>> ucp.open("step-1.ucp").step
        1
        """
        if changed and base is None:
            raise without_base()
        options = SaveOptions(
            storage,
            chunk_bytes,
            step,
            log,
            annotations=annotations or {},
            replicas=replicas,
            base=None if base is None else os.fspath(base),
            pipeline=pipeline,
        )
        return begin_save(
            self,
            path,
            state,
            options,
            layouts=layouts,
            compressor=compressor,
            changed=changed,
            when_busy=when_busy,
            then=then,
            fence=fence,
        )

    def drain(self) -> None:
        """Return when nothing is under way; does not raise.

        >>> with ucp.AsyncSaver() as saver:
        ...     save = saver.save("step-1.ucp", {"w": np.ones(4)})
        ...     saver.drain()
        ...     save.done()
        True
        """
        self._saver.drain()

    def wait(self) -> None:
        """Return when nothing is under way; raises the error of the last save, unless it was raised before.

        >>> with ucp.AsyncSaver() as saver:
        ...     save = saver.save("step-1.ucp", {"w": np.ones(4)})
        ...     saver.wait()
        >>> ucp.validate("step-1.ucp")
        []
        """
        self._saver.wait()

    def close(self) -> None:
        """Wait as `wait` does, and release memory and threads. Call it before ``destroy_process_group``.

        >>> saver = ucp.AsyncSaver()
        >>> save = saver.save("step-1.ucp", {"w": np.ones(4)})
        >>> saver.close()
        >>> save.done()
        True
        """
        self._saver.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._saver.__exit__(kind, value, trace)


def _copier() -> HostCopier:
    if "torch" not in sys.modules:
        return HostCopier()
    from ucpformat.state_dict.tensors.device_copier import DeviceCopier

    return DeviceCopier()


_savers: dict[object, AsyncSaver] = {}


def begin_save(
    saver: AsyncSaver,
    path: str | os.PathLike[str],
    state: Mapping[str, Any] | Module,
    options: SaveOptions,
    *,
    layouts: Mapping[str, TensorLayout] | None = None,
    compressor: Compression | None = None,
    changed: Mapping[str, Any] | None = None,
    when_busy: WhenBusy = "wait",
    then: Callable[[], object] | None = None,
    fence: Fence | None = None,
) -> AsyncSave:
    """Save in the background as `AsyncSaver.save` does, with options that are put together already."""
    group = saver._group
    fences = fences_of(saver._fence if fence is None else fence, state)

    def describe() -> LocalState:
        return live_state(
            state_to_save(state),
            rank=group.rank,
            layouts=layouts,
            compressor=compressor,
            pipeline=options.pipeline,
            changed=changed,
            fences=fences,
            kept=saver._form,
        )

    return saver._saver.save(path, describe, options, when_busy=when_busy, then=then, fences=fences)


def async_save(
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
    when_busy: WhenBusy = "wait",
    fence: Fence | None = None,
) -> AsyncSave:
    """Save as `save` does, in the background: returns when this rank's part is copied into host memory.

    What changes in ``state`` after the call is not in the checkpoint. Ranks agree on names, shapes and shares during
    the call, and what contradicts is raised by it; each copies what it will write, and a thread writes and commits.
    Where the previous save of the group is still under way, the call waits for it, or it raises or skips, on all ranks
    alike, as ``when_busy`` says. Memory for copies is kept for the next call; an `AsyncSaver` bounds it and lets go.
    With ``fence``, such as the optimizer, tensors that it changes are copied behind the call, and its next step waits
    for what is not copied yet (`AsyncSaver`).
    What fails in the background is raised by `AsyncSave.wait`, or by the next call on all ranks; where nobody asks, it
    is printed when the interpreter ends, which waits for the save.

    Raises:
        UcpError: as `save`; ``UCP-E-EXISTS`` where ``when_busy`` is ``"raise"``; what made the previous save fail.

    >>> state = {"w": np.ones(4, np.float32)}
    >>> save = ucp.async_save("step-1.ucp", state, step=1)
    >>> state["w"] += 1  # training goes on
    >>> report = save.wait()
    >>> ucp.load("step-1.ucp")["w"]
    array([1., 1., 1., 1.], dtype=float32)
    """
    return _saver_of(group).save(
        path,
        state,
        layouts=layouts,
        storage=storage,
        chunk_bytes=chunk_bytes,
        compressor=compressor,
        step=step,
        annotations=annotations,
        replicas=replicas,
        pipeline=pipeline,
        base=base,
        changed=changed,
        when_busy=when_busy,
        fence=fence,
    )


def _saver_of(group: object) -> AsyncSaver:
    """Return the saver that is kept for a group; a job that has begun its default group anew gets another one."""
    found = group_of(group)
    key: object = found.members if isinstance(found, TorchGroup) else _key(found)
    if key not in _savers:
        _savers[key] = AsyncSaver(group=another(found))
    return _savers[key]


def _key(group: Group) -> object:
    return "one process" if len(group.ranks) == 1 else group
