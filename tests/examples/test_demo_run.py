"""The demo of update logs kills when it says, sees what is durable, and measures what lies on the disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import demo
import demo_run
import pytest
from train_every_step import Draws, save
from train_gpt import Parallelism, Training, standard_library_text

import ucpformat as ucp
from tests.documentation.markdown import ROOT


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A job in this process that has logged four steps."""
    training = Training(Parallelism(None, 1, 1))
    state = {"schedule": training.scheduler, "draws": Draws(training.generator)}
    with ucp.UpdateLog(tmp_path / "run", training.model, training.optimizer, state=state, batch=1) as log:
        for _ in range(4):
            training.advance(standard_library_text(), log.step)
    save(str(tmp_path / "alone.ucp"), training)
    return tmp_path


def test_what_is_durable_is_what_a_recovery_gives(run: Path) -> None:
    assert demo_run.durable_step(run) == 4
    again = Training(Parallelism(None, 1, 1))
    state = {"schedule": again.scheduler, "draws": Draws(again.generator)}
    again.step = ucp.recover(run / "run", again.model, again.optimizer, state=state).step
    save(str(run / "again.ucp"), again)
    assert ucp.diff(run / "alone.ucp", run / "again.ucp", by="bytes").differences == ()
    # Batches and the schedule go on too: the next loss is that of a job that was never stopped.
    other = Training(Parallelism(None, 1, 1))
    losses = [other.advance(standard_library_text()) for _ in range(5)]
    assert again.advance(standard_library_text()) == losses[-1]


def test_a_line_that_is_not_whole_is_not_there(tmp_path: Path) -> None:
    losses = tmp_path / "losses.jsonl"
    assert demo_run.curve(losses) == {}
    losses.write_text(json.dumps({"step": 0, "loss": 5.5}) + '\n{"step": 1, "lo')
    assert demo_run.curve(losses) == {0: 5.5}


def test_names_of_one_file_count_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    (tmp_path / "c").write_bytes(bytes(7))
    assert demo_run.size(tmp_path) == 107
    assert demo_run.size(tmp_path / "nowhere") == 0


def test_logs_take_less_than_checkpoints(tmp_path: Path) -> None:
    costs = {kind: demo_run.measure(tmp_path, kind, 3) for kind in demo_run.MEASURED}
    sizes = [costs[kind][0] for kind in demo_run.MEASURED]
    full, increments, dense, sparse = sizes
    # Every byte of a dense model changes in a step: an increment saves nothing.
    assert 0.9 * full < increments < 1.1 * full
    assert dense < 0.4 * full
    assert sparse < 0.02 * full
    demo_run.draw(tmp_path / "run.png", {0: 5.0, 1: 4.0}, {"one": {0: 5.0}, "two": {1: 4.0}}, costs)
    assert (tmp_path / "run.png").stat().st_size > 10_000


def words(picture: Path) -> list[str]:
    """Return the texts in a picture, which matplotlib notes as comments beside their outlines."""
    return re.findall(r"<!-- (.*) -->", picture.read_text(encoding="utf-8"))


def test_the_picture_of_the_docs_is_what_is_drawn_of_its_figures(tmp_path: Path) -> None:
    """`make demo-run` with `PICTURE=` draws it anew."""
    picture = ROOT / "docs/images/demo-run.svg"
    reference, parts, costs = demo_run.kept(picture)
    assert list(costs) == list(demo_run.MEASURED)
    assert max(reference) == max(parts["1 process"])
    demo_run.keep(tmp_path / "again.svg", reference, parts, costs)
    assert words(tmp_path / "again.svg") == words(picture)
    assert (tmp_path / "again.json").read_text() == picture.with_suffix(".json").read_text()


def test_a_job_that_ends_early_is_no_job_that_was_killed(tmp_path: Path) -> None:
    job = demo_run.Job(tmp_path, 1, 1, ["--until", "0"])
    with pytest.raises(demo.DemoFailed, match="before step 3"):
        job.kill_at(tmp_path / "losses.jsonl", 3, 0.0)
