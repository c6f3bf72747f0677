"""OmegaConf's configurations in pickles, as Lightning keeps hyper-parameters: they come in as dicts, lists and values.

Source: omegaconf 2.3, ``basecontainer.py`` (``__getstate__``), ``nodes.py``: a container has ``_content``, a value
``_val``, and each its parent, which refers back. Interpolations (``${lr}``) stay the text that they are; types, flags
and parents are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["CONFIGURATIONS", "INERT", "ConfigurationDraft"]

_NODES: Final = ("Any", "String", "Integer", "Float", "Boolean", "Bytes", "Path", "Enum")

CONFIGURATIONS: Final[Mapping[tuple[str, str], str]] = {
    ("omegaconf.dictconfig", "DictConfig"): "_content",
    ("omegaconf.listconfig", "ListConfig"): "_content",
    ("omegaconf.base", "UnionNode"): "_content",
    **{("omegaconf.nodes", f"{name}Node"): "_val" for name in _NODES},
}
"""The classes, and the member of the state that is what they hold."""

INERT: Final = (("omegaconf.base", "ContainerMetadata"), ("omegaconf.base", "Metadata"))
"""What a state holds beside: it is read, and left out."""


@dataclass(slots=True, eq=False)
class ConfigurationDraft:
    """An instance before its state arrives, and then what it holds; what refers to it before that refers back."""

    member: str
    value: Any = None
    is_finished: bool = False

    def finish(self, state: object) -> object:
        """Return what the state of BUILD holds. Raises ValueError."""
        if self.is_finished or not isinstance(state, dict) or self.member not in state:
            raise ValueError("a configuration of an unknown kind")
        self.value, self.is_finished = state[self.member], True
        return self.value
