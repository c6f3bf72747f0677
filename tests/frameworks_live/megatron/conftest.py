"""Megatron-core warns of what a CPU lacks as it is imported; its warnings are not ours to heed."""

from __future__ import annotations

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import megatron.core.models.gpt.gpt_layer_specs
    import megatron.core.optimizer.distrib_optimizer
    import megatron.core.ssm.gated_delta_net
    import megatron.core.transformer.moe.experts  # noqa: F401


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if __package__ in str(getattr(item, "module", None)):
            item.add_marker(pytest.mark.filterwarnings("ignore"))
