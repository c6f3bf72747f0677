"""The Trainer's best checkpoint stays, and a run goes on from what it is told (one process)."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

import ucpformat as ucp
from tests.processes import ROOT
from ucpformat.errors import UcpError
from ucpformat.integrations.hugging_face_trainer import UcpTrainer

LOSSES = {2: 3.0, 4: 1.0, 6: 2.0, 8: 2.5}


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(ROOT / "examples"))
    yield importlib.import_module("hugging_face_trainer")
    sys.path.remove(str(ROOT / "examples"))


class Evaluated(UcpTrainer):
    """Its evaluations are made up."""

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        found = super().evaluation_loop(*args, **kwargs)
        found.metrics["eval_loss"] = LOSSES[self.state.global_step]
        return found


def trained(script: Any, run: Path, resume: Any = None, manager: Any = None, **options: Any) -> UcpTrainer:
    settings = {
        "max_steps": 8,
        "save_steps": 2,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_total_limit": 1,
        **options,
    }
    arguments = TrainingArguments(
        output_dir=str(run), use_cpu=True, report_to=[], disable_tqdm=True, label_names=["labels"], **settings
    )
    torch.manual_seed(0)
    trainer = Evaluated(
        script.Model(),
        arguments,
        train_dataset=script.Samples(),
        eval_dataset=script.Samples(),
        manager=manager,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer


@pytest.mark.parametrize("metric", ["eval_loss", "loss"])
def test_the_best_checkpoint_is_kept(script: Any, tmp_path: Path, metric: str) -> None:
    trainer = trained(script, tmp_path, metric_for_best_model=metric)
    assert trainer.manager.steps() == [4, 8]
    assert trainer.manager.metrics(4)["eval_loss"] == 1.0
    manager = ucp.CheckpointManager(tmp_path / "own", keep_best=1, metric=metric)
    assert trained(script, tmp_path, manager=manager).manager.steps() == [4, 8]


def test_a_save_between_evaluations_has_no_metrics(script: Any, tmp_path: Path) -> None:
    trainer = trained(script, tmp_path, metric_for_best_model="loss", save_steps=1)
    assert trainer.manager.steps() == [4, 8]
    manager = ucp.CheckpointManager(tmp_path / "own")
    trained(script, tmp_path, manager=manager, save_steps=1)
    assert [step for step in manager.steps() if manager.metrics(step)] == [2, 4, 6, 8]


def test_what_keeps_nothing_is_an_error(script: Any, tmp_path: Path) -> None:
    misspelt = ucp.CheckpointManager(tmp_path / "own", keep_best=1, metric="eval_los")
    with pytest.raises(UcpError, match=r"keep_best goes by 'eval_los'.*'eval_loss'"):
        trained(script, tmp_path, manager=misspelt)
    for options in ({"manager": misspelt}, {"metric_for_best_model": "loss"}):
        with pytest.raises(UcpError, match="known by evaluations, and there are none"):
            trained(script, tmp_path, eval_strategy="no", **options)
    with pytest.raises(UcpError, match="training could not go on"):
        trained(script, tmp_path, save_only_model=True)


@pytest.mark.parametrize("form", [int, str, "path", "other run"])
def test_training_goes_on_from_a_step_or_a_path(script: Any, tmp_path: Path, form: Any) -> None:
    begun = trained(script, tmp_path / "a", save_total_limit=None)
    path = begun.manager.path(6)
    resume = form(6) if isinstance(form, type) else path
    folder = tmp_path / ("b" if form == "other run" else "a")
    gone_on = trained(script, folder, resume, save_steps=10)
    assert gone_on.state.log_history[:3] == begun.state.log_history[:3]
    for name, value in gone_on.model.state_dict().items():
        assert torch.equal(value, begun.model.state_dict()[name])
    with pytest.raises(UcpError, match="nowhere"):
        trained(script, tmp_path / "a", "nowhere.ucp")
