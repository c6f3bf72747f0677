"""`UcpTrainer`: Hugging Face's ``Trainer`` with checkpoints of this format, under any parallelism that it runs with.

Needs transformers. Sources: transformers/trainer.py and trainer_callback.py of transformers 5.23; the methods that are
overridden are those by which the Trainer saves and loads its parts.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_callback import ExportableState

from ucpformat.errors import error
from ucpformat.frameworks.live.state_dict import load
from ucpformat.frameworks.live.torch_group import group_of
from ucpformat.integrations.random_states import fill_random_states, random_states
from ucpformat.manager import CheckpointManager

__all__ = ["UcpTrainer"]

_STATE_FILE = "trainer_state.json"


class UcpTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints are ``<output_dir>/ucp/step-N.ucp``: model, optimizer, schedule, its own state.

    ``train(resume_from_checkpoint=True)`` goes on from the newest one, on any number of ranks, or begins where there
    is none. ``save_total_limit`` says how many are kept; ``manager`` takes another one with rules of its own.
    ``load_best_model_at_end`` is not supported. ``save_model`` writes the model for inference as ever.
    """

    def __init__(self, *args: Any, manager: CheckpointManager | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.args.load_best_model_at_end:
            message = "load_best_model_at_end loads the Trainer's own checkpoints; set it to False"
            raise error("UCP-E-OBJECT", message, at="args")
        self._manager = manager
        self._step: int | None = None

    @property
    def manager(self) -> CheckpointManager:
        """The checkpoints of this run; every rank asks for it at the same time first."""
        if self._manager is None:
            self._manager = CheckpointManager(
                Path(self.args.output_dir, "ucp"), keep_last=self.args.save_total_limit
            )
        return self._manager

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As `Trainer.train`; ``resume_from_checkpoint`` is True, or the number of a step."""
        self._step = None
        if resume_from_checkpoint:
            latest = resume_from_checkpoint is True
            self._step = self.manager.latest() if latest else int(resume_from_checkpoint)
        if self._step is None:
            return super().train(None, *args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            # The Trainer reads from a file which batches it has seen.
            saved = load(self.manager.path(self._step), {"trainer": ""})
            Path(folder, _STATE_FILE).write_text(saved["trainer"])
            return super().train(folder, *args, **kwargs)

    def _parts(self) -> dict[str, Any]:
        optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        parts = {"model": self.model, "optim": optimizer, "schedule": self.lr_scheduler}
        scaler = self.accelerator.scaler
        return parts if scaler is None else parts | {"scaler": scaler}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        self.store_flos()
        for callback in [*self.callback_handler.callbacks, self.control]:
            if isinstance(callback, ExportableState):
                name = type(callback).__name__
                kept = self.state.stateful_callbacks.get(name)
                if isinstance(kept, list):
                    kept.append(callback.state())
                else:
                    self.state.stateful_callbacks[name] = callback.state()
        with tempfile.TemporaryDirectory() as folder:
            self.state.save_to_json(str(Path(folder, _STATE_FILE)))
            text = Path(folder, _STATE_FILE).read_text()
        # That of the first rank, for all: each rank's own says which rank it is, and how long it took.
        state = {
            **self._parts(),
            "trainer": group_of(None).broadcast(text.encode()).decode(),
            **random_states(),
        }
        self.manager.save(self.state.global_step, state)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Nothing: the model comes with the optimizer."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._step is not None:
            self.manager.restore(self._parts(), self._step)

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Nothing: it comes with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._step is not None:
            fill_random_states(self.manager.path(self._step))
