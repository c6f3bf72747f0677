"""Eight devices on the CPU, before anything imports JAX."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8".strip()
)
os.environ["JAX_PLATFORMS"] = "cpu"
