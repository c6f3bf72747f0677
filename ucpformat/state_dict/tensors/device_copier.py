"""Snapshots of tensors on an accelerator: copies into pinned memory, on a stream of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.distributed.snapshot import Copied, Copy, HostCopier

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from ucpformat.distributed.local_state import LocalState

__all__ = ["DeviceCopier"]


class DeviceCopier(HostCopier):
    """Copies from devices and from host memory; of what a device was given to do, copies wait for what `begin` saw.

    The host waits for copies from a device where it asks for it alone (`Copied.ready`).
    """

    def __init__(self, *, threads: int | None = None) -> None:
        super().__init__(threads)
        self._pinned = False
        self._streams: dict[Any, Any] = {}
        self._since: dict[Any, Any] = {}

    def begin(self, local: LocalState) -> bool:
        """Ask for pinned memory, which is expensive, from the first state on that lies on a device."""
        if not local.devices:
            return True
        import torch

        self._since = {
            device: torch.get_device_module(device).current_stream(device).record_event()
            for device in {tensor.device for tensor in local.devices.values()}
        }
        was_pinned, self._pinned = self._pinned, True
        return was_pinned

    def allocate(self, nbytes: int) -> NDArray[np.uint8]:
        """Return pinned memory for copies from a device, else pageable."""
        if not self._pinned:
            return super().allocate(nbytes)
        import torch

        memory: NDArray[np.uint8] = torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
        return memory

    def copy(self, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]) -> Copied:
        """Begin copies from devices, and make those from host memory meanwhile."""
        remote: dict[Any, list[Copy]] = {}
        host: list[Copy] = []
        for copy in copies:
            tensor = local.devices.get(copy.name)
            if tensor is None:
                host.append(copy)
            else:
                remote.setdefault(tensor.device, []).append(copy)
        events = [(device, self._begin(device, local, some, memory)) for device, some in remote.items()]
        super().copy(local, host, memory)

        def ready() -> None:
            for _, event in events:
                event.synchronize()

        def hold() -> None:
            import torch

            for device, event in events:
                torch.get_device_module(device).current_stream(device).wait_event(event)

        return Copied(ready, hold)

    def _begin(
        self, device: Any, local: LocalState, copies: Sequence[Copy], memory: NDArray[np.uint8]
    ) -> Any:
        import torch

        module = torch.get_device_module(device)
        if device not in self._streams:
            self._streams[device] = module.Stream(device=device)
        stream = self._streams[device]
        arena = torch.from_numpy(memory)
        flat: dict[Any, Any] = {}
        stream.wait_event(self._since[device])
        with module.stream(stream):
            for copy in copies:
                if copy.name not in flat:
                    tensor = local.devices[copy.name].detach().resolve_conj().resolve_neg()
                    # Memory that the caller lets go of is not used anew before it is copied.
                    tensor.record_stream(stream)
                    flat[copy.name] = tensor.contiguous().reshape(-1)
                source = flat[copy.name]
                place, shape = copy.piece.local, copy.piece.box.shape
                seen = source.as_strided(shape, place.strides, source.storage_offset() + place.offset)
                target = arena[copy.start : copy.start + copy.nbytes].view(source.dtype).reshape(shape)
                target.copy_(seen, non_blocking=True)
        return stream.record_event()
