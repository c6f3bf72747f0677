"""Hypothesis profiles: `ci` is deterministic and short, `long` and `nightly` random. Figures of sweeps, summed up."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_SLOW)
settings.register_profile("quick", max_examples=15, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("long", max_examples=400, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("nightly", max_examples=10_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile(os.environ.get("UCP_HYPOTHESIS_PROFILE", "ci"))

# Workers of pytest-xdist take one core each. More threads of torch's would spin while they wait for one another: where
# the machine has other work as well, tests with small models take four times the processor's time.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# What is printed for a terminal is as wide here as anywhere.
os.environ["COLUMNS"] = "100"

# A shell lets what it starts in the background ignore interrupts; tests send some, and wait for what they do.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start several processes share one worker: two cores hold no more, and fixtures are made once."""
    for item in items:
        if item.get_closest_marker("distributed") is not None:
            item.add_marker(pytest.mark.xdist_group("distributed"))


def pytest_collection_finish() -> None:
    """Spare the collections of tests what the modules of torch and of the tests consist of."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    """Let the report of a test carry the figures of its sweeps, from workers of xdist too."""
    if call.when == "call" and (module := sys.modules.get("tests.frameworks_live.sweep")) is not None:
        item.user_properties += [("sweep", counts) for counts in module.take_figures()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many harms of how many checkpoints came to what."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    found = [value for report in reports for name, value in report.user_properties if name == "sweep"]
    if found:
        counts: Counter[str] = sum(map(Counter, found), Counter())
        parts = ", ".join(f"{count} {name}" for name, count in counts.most_common())
        terminalreporter.write_line(f"sweeps: {len(found)} checkpoints, {counts.total()} harms: {parts}")
