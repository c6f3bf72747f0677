"""What an update log refuses: what cannot be logged, and what is not what was logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ucpformat as ucp
from tests.replay.jobs import OPTIMIZERS, Job, logged


class TestRefusals:
    """What cannot be logged, or is not what was logged."""

    @pytest.mark.parametrize(
        ("optimizer", "match"),
        [
            (lambda p: torch.optim.AdamW(p, fused=True), "`fused` set to False"),
            (lambda p: torch.optim.AdamW(p, capturable=True), "`capturable` set to False"),
            (lambda p: torch.optim.SGD(p, differentiable=True), "`differentiable` to False"),
            (torch.optim.LBFGS, "LBFGS"),
            (torch.optim.SparseAdam, "take Adagrad"),
        ],
    )
    def test_optimizers(self, tmp_path: Path, optimizer: object, match: str) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(ucp.MismatchError, match=match):
            ucp.UpdateLog(tmp_path, model, optimizer(model.parameters()))  # type: ignore[operator]
        assert not list(tmp_path.iterdir())

    def test_parameters_of_no_module(self, tmp_path: Path) -> None:
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))])
        with pytest.raises(ucp.UcpError, match="UCP-E-OBJECT"):
            ucp.UpdateLog(tmp_path, nn.Linear(2, 2), optimizer)

    @pytest.mark.parametrize("name", ["batch", "full_every", "check_every"])
    def test_numbers_of_steps(self, tmp_path: Path, name: str) -> None:
        model = nn.Linear(2, 2)
        with pytest.raises(ucp.MismatchError, match=name):
            ucp.UpdateLog(tmp_path, model, torch.optim.SGD(model.parameters()), **{name: 0})  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("after", 3),
            ("compressor", "topk"),
            ("compressor", ucp.TopK),
            ("replica", "yes"),
            ("pending_bytes", "1"),
            ("batch", True),
            ("batch", None),
            ("check_every", None),
            ("check_every", "auto"),
            ("residuals_every", "auto"),
            ("keep_full", None),
            ("state", [1]),
            ("state", {1: 2}),
            ("rng", None),
            ("group", "all"),
        ],
    )
    def test_options_of_another_kind(self, tmp_path: Path, name: str, value: object) -> None:
        model = nn.Linear(2, 2)
        options: Any = {name: value}
        with pytest.raises(ucp.MismatchError, match=f"{name}= is "):
            ucp.UpdateLog(tmp_path, model, torch.optim.SGD(model.parameters()), **options)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("state", 5),
            ("rng", "no"),
            ("compressor", 1),
            ("allow_loss", 1),
            ("keep_residuals", "x"),
            ("group", 5),
        ],
    )
    def test_options_of_a_recovery_of_another_kind(self, tmp_path: Path, name: str, value: object) -> None:
        model = nn.Linear(2, 2)
        options: Any = {name: value}
        with pytest.raises(ucp.MismatchError, match=f"{name}= is "):
            ucp.recover(tmp_path, model, torch.optim.SGD(model.parameters()), **options)

    @pytest.mark.parametrize("run", [None, 5, b"run", "a\0b", []])
    def test_what_is_no_path(self, run: Any) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        for refused in (
            lambda: ucp.UpdateLog(run, model, optimizer),
            lambda: ucp.recover(run, model, optimizer),
            lambda: ucp.CheckpointManager(run),
            lambda: ucp.save(run, {"step": 1}),
            lambda: ucp.load(run),
        ):
            with pytest.raises(ucp.MismatchError, match="a path or URL is"):
                refused()

    def test_model_and_optimizer(self, tmp_path: Path) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        wrong: list[tuple[Any, Any]] = [(optimizer, model), (None, optimizer), (model, "sgd"), (model, None)]
        for one, other in wrong:
            with pytest.raises(ucp.MismatchError, match=r"(model|optimizer)= is an? .* of torch"):
                ucp.UpdateLog(tmp_path, one, other)
            with pytest.raises(ucp.MismatchError, match=r"(model|optimizer)= is an? .* of torch"):
                ucp.recover(tmp_path, one, other)

    @pytest.mark.parametrize("wrong", [[2, 1], [0, 0], [0, 4], [-1, 2], [0, 1, 2, 3, 4]])
    def test_places_of_a_compressor_that_are_none(self, tmp_path: Path, wrong: list[int]) -> None:
        """UCP-W-041: nothing is logged that no recovery would take."""

        class Wrong:
            def compress(self, gradient: torch.Tensor) -> torch.Tensor:
                return torch.tensor(wrong)

        model = nn.Linear(2, 2, bias=False)
        log = ucp.UpdateLog(
            tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1), compressor=Wrong(), full_every=None
        )
        model(torch.ones(1, 2)).sum().backward()

        def step_and_close() -> None:
            log.step()
            log.close()

        with pytest.raises((ucp.MismatchError, IndexError)):  # torch itself takes no place that is not there
            step_and_close()
        assert not list(tmp_path.glob("*.ucplog/batches/*/*/*.batch"))

    def test_other_objects_than_were_logged(self, tmp_path: Path) -> None:
        """UCP-R-043: another optimizer, other groups, another model, another state."""
        logged(tmp_path, 4, full_every=None)
        job = Job()
        for optimizer, match in (
            (torch.optim.Adam(OPTIMIZERS["AdamW"](job.groups()).param_groups), "this is torch.optim.Adam"),
            (torch.optim.AdamW(job.model.parameters()), "parameter groups"),
        ):
            with pytest.raises(ucp.MismatchError, match=match):
                ucp.recover(tmp_path, job.model, optimizer)
        wide = nn.Linear(9, 9)
        with pytest.raises(ucp.MismatchError, match="parameter groups"):
            ucp.recover(tmp_path, wide, torch.optim.AdamW(wide.parameters()))
        job = Job()
        with pytest.raises(ucp.MismatchError, match="leave it out"):
            ucp.recover(tmp_path, job.model, job.optimizer, state={"other": job.schedule})

    def test_a_group_that_is_added(self, tmp_path: Path) -> None:
        """It takes an epoch of its own, which begins with a checkpoint."""
        model = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        optimizer = torch.optim.AdamW(model["a"].parameters())
        log = ucp.UpdateLog(tmp_path, model, optimizer, batch=1)
        recovery = ucp.recover(tmp_path, model, optimizer)
        optimizer.add_param_group({"params": list(model["b"].parameters())})
        with pytest.raises(ucp.MismatchError, match="groups"):
            log.step()
        log.close()
        with ucp.UpdateLog(tmp_path, model, optimizer, after=recovery) as log:
            for one in model.parameters():
                one.grad = torch.ones_like(one)
            log.step()
        again = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        other = torch.optim.AdamW([{"params": list(one.parameters())} for one in again.values()])
        assert ucp.recover(tmp_path, again, other).step == 1
        assert all(map(torch.equal, again.parameters(), model.parameters()))

    def test_a_closure(self, tmp_path: Path) -> None:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())

        class Closing:
            def step(self, optimizer: torch.optim.Optimizer) -> None:
                optimizer.step(lambda: 0.0)

        with (
            ucp.UpdateLog(tmp_path, model, optimizer) as log,
            pytest.raises(ucp.MismatchError, match="closure"),
        ):
            log.step(Closing())

    def test_a_closure_in_place_of_a_scaler(self, tmp_path: Path) -> None:
        model = nn.Linear(2, 2)
        with (
            ucp.UpdateLog(tmp_path, model, torch.optim.SGD(model.parameters())) as log,
            pytest.raises(ucp.MismatchError, match=r"GradScaler.*closure"),
        ):
            log.step(lambda: 0.0)

    def test_a_gradient_that_cannot_be_compressed_in_place(self) -> None:
        with pytest.raises(ucp.MismatchError, match="contiguous"):
            ucp.TopK(0.5).compress(torch.ones(3, 2).t())

    def test_an_option_of_a_compressor(self) -> None:
        kind: Any = "yes"
        with pytest.raises(ucp.MismatchError, match="error_feedback= is"):
            ucp.TopK(0.5, error_feedback=kind)

    @pytest.mark.parametrize("density", [0.0, 1.5, float("nan"), "1 %", True])
    def test_a_density(self, density: Any) -> None:
        with pytest.raises(ucp.MismatchError, match="density"):
            ucp.TopK(density)
