"""`UcpTrainer`: Hugging Face's ``Trainer`` with checkpoints of this format, under any parallelism that it runs with.

Needs transformers. Sources: transformers/trainer.py and trainer_callback.py of transformers 5.23; the methods that are
overridden are those by which the Trainer saves and loads its parts.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from transformers import Trainer
from transformers.trainer_callback import ExportableState

from ucpformat.errors import error
from ucpformat.integrations.random_states import fill_random_states, random_states
from ucpformat.manager import CheckpointManager
from ucpformat.manager.run_directory import step_of
from ucpformat.state_dict.save_load import load
from ucpformat.state_dict.torch_group import group_of

__all__ = ["UcpTrainer"]

_STATE_FILE = "trainer_state.json"
_REFUSED = {
    "load_best_model_at_end": "it loads the Trainer's own checkpoints; set it to False, and restore the best one",
    "save_only_model": "training could not go on from such checkpoints; set it to False, and call save_model",
}


class UcpTrainer(Trainer):  # type: ignore[misc]
    """A Trainer whose checkpoints are ``<output_dir>/ucp/step-N.ucp``: model, optimizer, schedule, its own state.

    ``train(resume_from_checkpoint=True)`` goes on from the newest one, on any number of ranks, or begins where there
    is none. ``save_total_limit`` says how many of the last are kept, beside the best one by ``metric_for_best_model``
    if that is given; ``manager`` takes another one with rules of its own. A checkpoint has the metrics of the
    evaluation at its step, if there was one: each as ``eval_<name>``, and that of ``keep_best`` by the name it has
    there. ``load_best_model_at_end`` is not supported. ``save_model`` writes the model for inference as ever.
    """

    def __init__(self, *args: Any, manager: CheckpointManager | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name, message in _REFUSED.items():
            if getattr(self.args, name, False):
                raise error("UCP-E-OBJECT", message, at=f"args.{name}")
        by_metric = self._by_metric() if manager is None else manager.retention.best is not None
        if by_metric and self.args.eval_strategy.value == "no":
            message = "the best checkpoint is known by evaluations, and there are none; give eval_strategy"
            raise error("UCP-E-MISMATCH", message, at="args.eval_strategy")
        self._manager = manager
        self._resumed: str | None = None
        self._step: int | None = None
        self._evaluated: dict[int, dict[str, float]] = {}

    @property
    def manager(self) -> CheckpointManager:
        """The checkpoints of this run; every rank asks for it at the same time first."""
        if self._manager is None:
            self._manager = CheckpointManager(
                Path(self.args.output_dir, "ucp"),
                keep_last=self.args.save_total_limit,
                keep_best=1 if self._by_metric() else None,
                metric=self.args.metric_for_best_model if self._by_metric() else None,
                mode="max" if self._by_metric() and self.args.greater_is_better else "min",
            )
        return self._manager

    def _by_metric(self) -> bool:
        return self.args.metric_for_best_model is not None and self.args.save_total_limit is not None

    def train(
        self, resume_from_checkpoint: str | os.PathLike[str] | int | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Train as `Trainer.train`; ``resume_from_checkpoint`` is True, a step, or the path of a checkpoint."""
        self._resumed = self._path_of(resume_from_checkpoint)
        if self._resumed is None:
            return super().train(None, *args, **kwargs)
        with tempfile.TemporaryDirectory() as folder:
            # The Trainer reads from a file which batches it has seen.
            saved = load(self._resumed, {"trainer": ""})
            Path(folder, _STATE_FILE).write_text(saved["trainer"])
            return super().train(folder, *args, **kwargs)

    def _path_of(self, resume: str | os.PathLike[str] | int | None) -> str | None:
        self._step = None
        if resume is None or resume is False:
            return None
        text = str(resume) if isinstance(resume, int) else os.fspath(resume)
        if resume is True:
            self._step = self.manager.latest()
        elif text.isdecimal():
            self._step = int(text)
        else:
            step = step_of(os.path.basename(text))
            if step is None or self.manager.path(step) not in (text, os.path.abspath(text)):
                return text
            self._step = step
        return None if self._step is None else self.manager.path(self._step)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as `Trainer.evaluate`; a checkpoint of the same step gets the metrics."""
        found: dict[str, float] = super().evaluate(*args, **kwargs)
        step = self.state.global_step
        numbers = {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
        self._evaluated = {step: {**self._evaluated.get(step, {}), **numbers}}
        return found

    def _metrics(self) -> dict[str, float]:
        metrics = dict(self._evaluated.get(self.state.global_step, {}))
        wanted = self.manager.retention.metric
        if wanted is not None and f"eval_{wanted}" in metrics:
            metrics.setdefault(wanted, metrics[f"eval_{wanted}"])
        return metrics

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
        self.manager.save(self.state.global_step, state, metrics=self._metrics())

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Do nothing: the model comes with the optimizer."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._step is not None:
            self.manager.restore(self._parts(), self._step)
        elif checkpoint is not None and self._resumed is not None:
            load(self._resumed, self._parts())

    def _load_scaler(self, checkpoint: str | None) -> None:
        """Do nothing: it comes with the optimizer."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._resumed is not None:
            fill_random_states(self._resumed)
