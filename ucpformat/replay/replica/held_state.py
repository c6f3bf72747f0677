"""The state that a replica holds: the trainer's, at a step, kept up with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucpformat import jsonio
from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.model.root import LogPosition
from ucpformat.replay.applying import Applier
from ucpformat.replay.content import checkpoint_content
from ucpformat.replay.exactness import profile_of
from ucpformat.replay.own_values import decoded
from ucpformat.replay.replica.image import Image, image_of, made, send_tensors
from ucpformat.replay.replica.spans import Span
from ucpformat.replay.replica.wire import send_document
from ucpformat.replay.state_sums import state_sums
from ucpformat.replay.tracked import tracked_state
from ucpformat.update_log.batch import BatchHeader, Entry
from ucpformat.update_log.documents import Epoch
from ucpformat.update_log.forms import entry_bytes
from ucpformat.update_log.steps import LoggedEntry

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.documents import Exactness

__all__ = ["HeldState"]


class HeldState:
    """A model and an optimizer of the replica's own, which make the trainer's steps: each is held, and then made."""

    def __init__(self, hello: Any, stream: socket.socket, ring: memoryview, group: Group) -> None:
        self._ring = ring
        self._digest: str = hello["digest"]
        self.epoch = Epoch.parse(jsonio.dumps_canonical(hello["epoch"]), at="epoch")
        self._model, self._optimizer = made(Image.from_json(hello["image"]), stream)
        self._tracked = tracked_state(self._model, self._optimizer, group)
        self._applier = Applier.of(self._optimizer, self._tracked, self.epoch, at="replica", borrows=True)
        self.step: int = hello["step"]
        self._held: tuple[BatchHeader, Mapping[int, LoggedEntry]] | None = None
        self._values: Mapping[str, JsonValue] = hello["values"]
        self._owned = {
            (piece.tensor, piece.offset, piece.shape): number
            for number, piece in enumerate(self.epoch.pieces)
        }
        self._checked = 0
        self._exactness: Exactness = self.epoch.exactness
        if self._exactness == "bitwise" and profile_of(self._optimizer, self._tracked) != self.epoch.profile:
            self._exactness = "tolerance"

    @property
    def span(self) -> Span:
        """The steps whose state this has, or can make."""
        return Span(self.step, self.step + (self._held is not None))

    def hold(self, start: int, nbytes: int) -> None:
        """Take the step whose header lies in the ring, and do not make it yet.

        Raises:
            UcpError: ``UCP-E-LOG`` where this is not the step that follows.
        """
        found: Any = jsonio.loads(bytes(self._ring[start : start + nbytes]), at="replica")
        header = BatchHeader.from_json(found["batch"], at="replica")
        if self._held is not None or (header.epoch, header.first_step) != (self.epoch.epoch, self.step):
            message = f"step {header.first_step} of epoch {header.epoch} does not follow step {self.step}"
            raise error("UCP-E-LOG", message, at="replica")
        (record,) = header.steps
        at = f"step {self.step}"
        entries = {}
        for entry, offset in zip(record.entries, found["offsets"], strict=True):
            piece = self.epoch.pieces[entry.piece]
            item_bytes = dtype(self.epoch.tensors[piece.tensor].dtype).item_bytes
            data = self._ring[offset : offset + entry_bytes(entry, piece.shape, item_bytes)]
            entries[entry.piece] = LoggedEntry(entry, data, at)
        for number in found["elsewhere"]:
            # Of a tensor of which this rank has nothing, but whose steps its optimizer counts.
            entries[number] = LoggedEntry(Entry(number, "dense"), memoryview(b""), at)
        self._held = header, entries

    def make(self) -> None:
        """Make the step that is held.

        Raises:
            UcpError: ``UCP-E-LOG`` where the trainer's state is another one.
        """
        if self._held is None:
            raise AssertionError("a step is made when it is held")
        (header, entries), self._held = self._held, None
        at = f"step {self.step}"
        self._applier.step(header.steps[0], entries, at)
        self._applier.set_options(header.options, at)
        self._values = header.values
        self.step += 1
        if header.sums and self._exactness == "bitwise":
            self._compare(header)

    def forget(self) -> None:
        """Let go of the step that is held."""
        self._held = None

    def _compare(self, header: BatchHeader) -> None:
        mine = state_sums(self._tracked, self._optimizer, self._owned)
        for ours, theirs in zip(mine, header.sums, strict=True):
            if ours != theirs:
                atom = self.epoch.tensors[theirs.tensor].atom
                message = (
                    f"{atom} is not what the optimizer's steps have made of it at step {self.step}: something has "
                    "changed it outside of the optimizer"
                )
                raise error("UCP-E-LOG", message, at=f"{atom}/{theirs.slot}")
        self._checked += len(header.sums)

    @property
    def position(self) -> LogPosition:
        """What a checkpoint of the state says of the log."""
        return LogPosition(self.epoch.log, self.epoch.epoch)

    def content(self) -> dict[str, Any]:
        """Return what a checkpoint of the state has."""
        values = decoded(self._values, "replica")
        return checkpoint_content(self._model, self._optimizer, self._tracked, values)

    @property
    def name(self) -> dict[str, JsonValue]:
        """What tells this state from that of other logs and epochs."""
        return {"log": self.epoch.log, "epoch": self.epoch.epoch, "digest": self._digest}

    def give(self, stream: socket.socket) -> None:
        """Send the state to whoever recovers; raises `OSError`."""
        image, tensors = image_of(self._model, self._optimizer)
        document: dict[str, JsonValue] = {
            "exactness": self._exactness,
            "checked": self._checked,
            "values": dict(self._values),
            "image": image.to_json(),
        }
        send_document(stream, document)
        send_tensors(stream, tensors)
