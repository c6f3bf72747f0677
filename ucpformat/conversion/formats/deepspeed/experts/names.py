"""What DeepSpeed calls the parameters of experts (``moe/experts.py``)."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["expert_name"]

_EXPERT: Final = re.compile(r"(.*\.deepspeed_moe\.experts\.deepspeed_experts\.)(\d{1,9})(\..+)", re.DOTALL)


def expert_name(name: str) -> tuple[str, int, str] | None:
    """Return what is before an expert's number, the number, and what is behind it; None for what is of no expert."""
    match = _EXPERT.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), match[3])
