"""Writes past the page cache: what has to be on the disk anyway is copied by the device, and not by the processor.

A page of the cache costs as much as what is copied into it, more where memory is full, and drives out data that are
needed. ``O_DIRECT`` (open(2)) wants offsets, lengths and addresses aligned; what is not is left to the page cache.
Where whole pages of 2 MiB can be written by one call, the page cache is quicker (`LocalPackFile`).
"""

from __future__ import annotations

import errno
import os
import threading
from typing import Final

import numpy as np

from ucpformat.storage.scratch import ALIGNMENT, Scratch
from ucpformat.storage.stores.local_io import opened

__all__ = ["LEAST_BYTES", "DirectWriter"]

LEAST_BYTES: Final = 1 << 20
"""Less is gathered by the page cache."""
_CALL_BYTES: Final = 1 << 26
_COPIED_BYTES: Final = 1 << 22
_NOT_HERE: Final = frozenset({errno.EINVAL, errno.EFAULT, errno.EOPNOTSUPP, errno.ENOSYS})


_scratch: Final = Scratch()  # for data that are not aligned


class DirectWriter:
    """The same file as an open descriptor, without the page cache. Safe to use from several threads.

    Where the file system or the memory does not let that happen, nothing is written, and nothing tried again.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._own = -1
        self._lock = threading.Lock()
        self._is_possible = hasattr(os, "O_DIRECT")

    def write(self, data: memoryview, offset: int) -> int:
        """Write the first of ``data`` (bytes, contiguous) from byte ``offset`` of the file on; how many those are.

        Raises:
            OSError: what the medium reports, ``ENOSPC`` or ``EIO``.
        """
        done = 0
        if data.nbytes < LEAST_BYTES or offset % ALIGNMENT or not self._is_possible:
            return done
        wanted = data.nbytes // ALIGNMENT * ALIGNMENT
        source = np.frombuffer(data, np.uint8)
        is_aligned = source.ctypes.data % ALIGNMENT == 0
        descriptor = self._opened()
        try:
            while done < wanted and self._is_possible:
                if is_aligned:
                    part = source[done : min(wanted, done + _CALL_BYTES)]
                else:
                    part = _scratch.take(_COPIED_BYTES)[: min(wanted - done, _COPIED_BYTES)]
                    part[:] = source[done : done + part.nbytes]
                count = os.pwrite(descriptor, part.data, offset + done)
                done += count // ALIGNMENT * ALIGNMENT
                # An odd piece is no error, but nothing can follow it.
                self._is_possible = count > 0 and count % ALIGNMENT == 0
        except OSError as reason:
            if reason.errno not in _NOT_HERE:
                raise
            self._is_possible = False
        return done

    def _opened(self) -> int:
        with self._lock:
            if self._own < 0 and self._is_possible:
                flags = os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT
                try:
                    self._own = opened(f"/proc/self/fd/{self._descriptor}", flags)
                except OSError:
                    self._is_possible = False
            return self._own

    def close(self) -> None:
        """Close what this has opened."""
        with self._lock:
            own, self._own = self._own, -1
        self._is_possible = False
        if own >= 0:
            os.close(own)
