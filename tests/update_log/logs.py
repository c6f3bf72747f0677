"""Logs that are made without a training job, step by step, wrong on purpose where a test wants that."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ucpformat import jsonio
from ucpformat.model.references import sha256_digest
from ucpformat.update_log.documents import After, Epoch, LogDocument, LoggedTensor, LogPiece
from ucpformat.update_log.drafts import BatchDraft, Captured, StepDraft, batch_bytes
from ucpformat.update_log.place import LOG_KEY, BatchKey, LogPlace, batch_key, epoch_key

ID = "8f14e45fceea167a5a36dedd4bea2543"
OPTIONS = ({"lr": 0.5},)

EPOCH = Epoch(
    ID,
    0,
    "c9f0f895fb98ab9159f51fd0297e236d",
    0,
    None,
    2,
    (LoggedTensor("w", "gradient", "float32", (4, 3)), LoggedTensor("mean", "value", "float32", (2,))),
    (LogPiece(0, 0, (0, 0), (2, 3)), LogPiece(0, 1, (2, 0), (2, 3)), LogPiece(1, 0, (0,), (2,))),
    ((0,),),
    "ucp.sgd",
    {},
    "bitwise",
)


@dataclass
class LogMaker:
    """A log in a directory, or at a URL; every batch goes on from the one before it of its rank."""

    path: Any
    epochs: dict[int, tuple[Epoch, str]] = field(default_factory=dict)
    previous: dict[tuple[int, int], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.place = LogPlace(str(self.path))
        self.put(LOG_KEY, jsonio.dumps_canonical(LogDocument(ID).to_json()))

    def put(self, key: str, data: bytes) -> None:
        self.place.create(key, [memoryview(data)])

    def epoch(self, number: int = 0, first_step: int = 0, after: int | None = None, **other: Any) -> Epoch:
        before = None if after is None else After(after, self.epochs[after][1])
        epoch = replace(EPOCH, epoch=number, first_step=first_step, after=before, **other)
        data = jsonio.dumps_canonical(epoch.to_json())
        self.put(epoch_key(number), data)
        self.epochs[number] = epoch, sha256_digest(data)
        for rank in range(epoch.ranks):
            self.previous[number, rank] = sha256_digest(data)
        return epoch

    def batch(self, number: int, rank: int, first_step: int, steps: int = 1, **other: Any) -> str:
        """Write a batch with so many steps, or those of ``drafts``; returns its key."""
        epoch, _ = self.epochs[number]
        drafts = other.pop("drafts", None) or [step_of(epoch, rank, first_step + n) for n in range(steps)]
        drafts[0].options = drafts[0].options or other.pop("options", OPTIONS)
        draft = BatchDraft(
            first_step, drafts, other.pop("values", {"cursor": first_step}), other.pop("sums", ())
        )
        previous = other.pop("previous", self.previous[number, rank])
        buffers, digest = batch_bytes(draft, epoch, rank, previous)
        key = batch_key(BatchKey(number, rank, first_step))
        self.put(key, b"".join(buffers))
        self.previous[number, rank] = digest
        assert not other, other
        return key

    def steps(self, number: int, first_step: int, stop_step: int) -> None:
        """Write a batch of one step of every rank for each step."""
        for step in range(first_step, stop_step):
            for rank in range(self.epochs[number][0].ranks):
                self.batch(number, rank, step)


def gradient(step: int, shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.float32]]:
    """The gradient of a step: some of its elements are zero."""
    return np.random.default_rng(step).integers(-2, 3, shape).astype(np.float32)


def step_of(epoch: Epoch, rank: int, step: int) -> StepDraft:
    """What a rank logs of a step: its rows of the gradient, and every third step the buffer."""
    captured = []
    for number, piece in enumerate(epoch.pieces):
        if piece.rank != rank:
            continue
        tensor = epoch.tensors[piece.tensor]
        if tensor.role == "gradient":
            rows = tuple(slice(o, o + e) for o, e in zip(piece.offset, piece.shape, strict=True))
            captured.append(Captured(number, gradient(step, tensor.shape)[rows].copy()))
        elif step % 3 == 0:
            captured.append(Captured(number, np.full(piece.shape, step, np.float32)))
    return StepDraft(captured)
