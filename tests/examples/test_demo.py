"""The demo judges rightly, notices processes that die, and resumes a real job on other meshes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import demo
import pytest

from tests.processes import launch

REFERENCE = {step: 5.0 - 0.1 * step for step in range(8)}
STEPS = range(4, 8)


def curves(*, shift: float, control_shift: float) -> dict[demo.Run, demo.Curve]:
    resumed = {run: {step: REFERENCE[step] + shift for step in STEPS} for run in demo.RESUMED}
    return {**resumed, demo.CONTROL: {step: REFERENCE[step] + control_shift for step in STEPS}}


def test_curves_within_tolerance_pass(capsys: pytest.CaptureFixture[str]) -> None:
    demo.judge(REFERENCE, curves(shift=5e-7, control_shift=0.1), STEPS, demo.Narrator(1))
    assert capsys.readouterr().out.count("largest difference") == 4


def test_a_resume_outside_tolerance_fails() -> None:
    with pytest.raises(demo.DemoFailed, match="FSDP2 3; 2 processes, TP 2; 1 process"):
        demo.judge(REFERENCE, curves(shift=-2e-4, control_shift=0.1), STEPS, demo.Narrator(1))


def test_a_tolerance_that_the_control_meets_fails() -> None:
    with pytest.raises(demo.DemoFailed, match="tolerance: control"):
        demo.judge(REFERENCE, curves(shift=0.0, control_shift=0.0), STEPS, demo.Narrator(1))


def test_a_loss_that_is_not_a_number_fails() -> None:
    with pytest.raises(demo.DemoFailed, match="FSDP2 3"):
        demo.judge(REFERENCE, curves(shift=float("nan"), control_shift=0.1), STEPS, demo.Narrator(1))


def test_a_resume_that_starts_at_another_step_fails() -> None:
    with pytest.raises(demo.DemoFailed, match="did not train steps 3 to 7"):
        demo.judge(REFERENCE, curves(shift=0.0, control_shift=0.1), range(3, 8), demo.Narrator(1))


def start(*programs: str) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen([sys.executable, "-S", "-c", program]) for program in programs]


def test_waits_for_every_process() -> None:
    processes = start("pass", "import time; time.sleep(0.3)")
    assert demo.wait_for_all(processes) is None
    assert [process.returncode for process in processes] == [0, 0]


def test_the_first_failure_stops_the_others() -> None:
    processes = start("import time; time.sleep(600)", "raise SystemExit(3)")
    assert demo.wait_for_all(processes) == 1
    assert processes[0].returncode < 0


@pytest.mark.distributed
@pytest.mark.xdist_group("distributed")
def test_a_job_resumes_on_other_meshes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job of one rank runs as the demo starts it, which takes seconds; ranks of the others are forked."""
    real = demo.train

    def train(
        run: demo.Run, out: Path, until: int, options: Sequence[str], narrator: demo.Narrator
    ) -> demo.Curve:
        if run is demo.RESUMED[-1]:
            return real(run, out, until, options, narrator)
        losses = f"{run.name}.json"
        layout = ["--dp", str(run.dp), "--tp", str(run.tp), "--until", str(until)]
        arguments = ["--losses", losses, *layout, *options, *run.options]
        launch("tests.examples.script_worker", [str(out), "train_gpt.py", *arguments], run.processes)
        return {entry["step"]: entry["loss"] for entry in json.loads((out / losses).read_text())}

    monkeypatch.setattr(demo, "train", train)
    demo.demonstrate(tmp_path / "out", steps=4)
    assert (tmp_path / "out" / "loss.png").stat().st_size > 10_000
    assert capsys.readouterr().out.count("<= 0.0001") == 3
