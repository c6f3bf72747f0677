"""Copying what an optimizer is about to apply, and buffers that have changed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.replay.compressors import compress, residuals_of
from ucpformat.replay.tracked import flat_elements, follow_buffers, local_of, piece_view
from ucpformat.state_dict.tensors.local_tensors import to_torch
from ucpformat.update_log.drafts import Captured, StepDraft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from numpy.typing import NDArray
    from torch.optim import Optimizer

    from ucpformat.replay.compressors import GradientCompressor
    from ucpformat.replay.tracked import Tracked, TrackedState
    from ucpformat.update_log.documents import Epoch, Role

__all__ = ["BROKEN", "Capture", "Owned"]

BROKEN: Final = (
    "a step has ended by an error, and nobody knows what it has changed; recover() goes on before it"
)

Owned = dict[tuple[int, tuple[int, ...], tuple[int, ...]], int]
"""Pieces that a rank logs: their numbers by tensor, offset and shape."""


class Capture:
    """Copies the gradients of a step, as the hook of an optimizer, while it is on; ``draft`` has what was copied.

    ``copied`` makes the copies of whole pieces, which stay as they are until the draft was written. With it all that
    this rank holds is copied, also what other ranks would log.
    """

    def __init__(
        self,
        state: TrackedState,
        epoch: Epoch,
        rank: int,
        compressor: GradientCompressor | None,
        copied: Callable[[NDArray[np.generic]], NDArray[np.generic]] | None = None,
    ) -> None:
        self._state = state
        self._compressor = compressor
        self._residuals = residuals_of(compressor)
        self._copied = copied or np.copy
        self._is_whole = [one.is_whole for one in state.tensors]
        self.owned: Owned = {
            (piece.tensor, piece.offset, piece.shape): number
            for number, piece in enumerate(epoch.pieces)
            if piece.rank == rank or copied is not None
        }
        self._mine = [
            [
                (index, piece)
                for piece in one.pieces
                if (index := self.owned.get((number, piece.box.offset, piece.box.shape))) is not None
            ]
            for number, one in enumerate(state.tensors)
        ]
        self._seen: dict[int, bytes] = {}
        self.is_on = False
        self.is_broken = False
        """Whether a step has ended by an error when it may have changed parameters already."""
        self.draft: StepDraft | None = None
        self.buffers(None)

    def step(self, step: Callable[[], object], *, with_residuals: bool = False) -> StepDraft:
        """Have the optimizer make a step by a call; returns what it had, or that it was skipped.

        With ``with_residuals`` those of error feedback are copied, as they are behind the step.
        """
        self.draft = None
        self.is_on = True
        try:
            step()
        except BaseException:
            self.is_broken = self.draft is not None
            raise
        finally:
            self.is_on = False
        found = self.draft or StepDraft(skipped=True)
        self.draft = None
        self.buffers(found)
        if with_residuals:
            self._copy_residuals(found)
        found.captured.sort(key=lambda one: one.piece)
        return found

    def before_step(
        self, optimizer: Optimizer, arguments: tuple[Any, ...], options: Mapping[str, Any]
    ) -> None:
        """Compress and copy gradients; called by the optimizer before it makes a step."""
        if not self.is_on:
            if _is_first_of_torch(optimizer):
                return
            message = (
                "the optimizer was to make a step that is not logged: call step() of the log in place of its own, "
                "log.step(scaler) in place of that of a GradScaler, and close a log before another one"
            )
            raise error("UCP-E-MISMATCH", message)
        if any(one is not None for one in arguments[1:]) or options.get("closure") is not None:
            raise error("UCP-E-MISMATCH", "a step with a closure cannot be logged; call backward() yourself")
        for name, other, version in self._state.others:
            if other._version != version:
                message = (
                    "the optimizer does not have this parameter, and something has changed it: a log has what its "
                    "optimizer changes alone; give all parameters to one optimizer, as groups of their own"
                )
                raise error("UCP-E-MISMATCH", message, at=name)
        draft = StepDraft()
        for number, one in enumerate(self._state.tensors):
            gradient = one.tensor.grad if one.role == "gradient" else None
            if gradient is None:
                continue
            if gradient.is_sparse and not gradient.is_coalesced():
                # What the optimizer gets is what is logged: rows that occur twice are added once and for all.
                gradient = one.tensor.grad = gradient.coalesce()
            if not one.pieces:
                if 0 not in one.shape:
                    draft.elsewhere.append(number)
                continue
            local = local_of(gradient)
            places = None
            if self._compressor is not None and not local.is_sparse:
                if not local.is_contiguous():
                    message = "a gradient that is not contiguous cannot be compressed in place"
                    raise error("UCP-E-MISMATCH", message, at=one.atom)
                residual = None if self._residuals is None else local_of(self._residuals[one.atom])
                places = compress(self._compressor, local, residual)
            if local.is_sparse:
                self._require_dense_states(optimizer, number)
            self._gradient(draft, number, one, local, places)
        self.draft = draft

    def _require_dense_states(self, optimizer: Optimizer, number: int) -> None:
        members = zip(optimizer.param_groups, self._state.groups, strict=True)
        if any(options.get("momentum") and number in group for options, group in members):
            message = (
                "the momentum of a sparse gradient is sparse as well, and a checkpoint cannot have it; set that of its "
                "group to 0, or make the gradient dense"
            )
            raise error("UCP-E-MISMATCH", message, at=self._state.tensors[number].atom)

    def _gradient(
        self, draft: StepDraft, number: int, one: Tracked, local: torch.Tensor, places: torch.Tensor | None
    ) -> None:
        """Copy what this rank logs of a gradient."""
        mine = self._mine[number]
        if not mine:
            return
        is_whole = self._is_whole[number]
        if local.is_sparse:
            self._rows(draft, one, local, mine[0][0] if is_whole else None)
            return
        if places is not None and is_whole:
            values = flat_elements(local.view(-1).index_select(0, places), one.atom)
            draft.captured.append(Captured(mine[0][0], values, places.to("cpu").numpy()))
            return
        elements = flat_elements(local, one.atom)
        for index, piece in mine:
            view = piece_view(elements, piece.local, piece.box)
            draft.captured.append(Captured(index, self._copied(view)))

    def _rows(self, draft: StepDraft, one: Tracked, local: torch.Tensor, piece: int | None) -> None:
        if piece is None or local.sparse_dim() != 1:
            message = "a sparse gradient is logged of a whole tensor alone, by its rows; make it dense"
            raise error("UCP-E-MISMATCH", message, at=one.atom)
        values = flat_elements(local.values(), one.atom).reshape(tuple(local.values().shape)).copy()
        rows = local.indices()[0].to("cpu").numpy().copy()
        draft.captured.append(Captured(piece, values, rows, are_rows=True))

    def buffers(self, draft: StepDraft | None) -> None:
        """Copy buffers that have changed since they were last looked at; without a draft, look only."""
        follow_buffers(self._state)
        for index, values in self._logged_here("value"):
            data = values.tobytes()
            if self._seen.get(index) != data:
                self._seen[index] = data
                if draft is not None:
                    draft.captured.append(Captured(index, self._copied(values)))

    def buffers_seen(self) -> dict[int, torch.Tensor]:
        """Return what this rank holds of buffers as it was when they were last looked at, by the identity of each.

        A forward pass may have changed them since.
        """
        follow_buffers(self._state)
        found = {}
        for number, one in enumerate(self._state.tensors):
            if one.role == "value":
                local = local_of(one.tensor)
                elements = flat_elements(local, one.atom).copy()
                for index, piece in self._mine[number]:
                    view = piece_view(elements, piece.local, piece.box)
                    view[...] = np.frombuffer(self._seen[index], view.dtype).reshape(view.shape)
                found[id(one.tensor)] = to_torch(elements.reshape(tuple(local.shape)), one.dtype)
        return found

    def _copy_residuals(self, draft: StepDraft) -> None:
        for index, values in self._logged_here("residual"):
            draft.captured.append(Captured(index, self._copied(values)))

    def _logged_here(self, role: Role) -> Iterator[tuple[int, NDArray[np.generic]]]:
        """Yield the pieces of a role that this rank logs, each with its elements, which are not copied."""
        for number, one in enumerate(self._state.tensors):
            if one.role != role:
                continue
            elements = flat_elements(local_of(one.tensor), one.atom)
            for index, piece in self._mine[number]:
                yield index, piece_view(elements, piece.local, piece.box)


def _is_first_of_torch(optimizer: Optimizer) -> bool:
    """Return whether torch has an optimizer make a step to have its states, at a learning rate of zero."""
    return not optimizer.state and all(float(group.get("lr", 0.0)) == 0.0 for group in optimizer.param_groups)
