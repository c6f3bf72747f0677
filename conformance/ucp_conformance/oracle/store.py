"""A checkpoint's directory as a store: keys to bytes, links refused (SPEC 8)."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from ucp_conformance.oracle.problem import RefusalError

__all__ = ["Store", "is_component", "is_key"]

_COMPONENT = re.compile(r"(?!\.|__)[A-Za-z0-9._-]{1,200}(?<!\.)")


def is_component(text: str) -> bool:
    """Return whether UCP-D-010 holds for one component."""
    return _COMPONENT.fullmatch(text) is not None


def is_key(text: str) -> bool:
    """Return whether UCP-D-010 holds."""
    return all(map(is_component, text.split("/")))


class Store:
    """The objects below a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def size(self, key: str) -> int | None:
        """Return length of an object, None if there is none; refuses links and special files with UCP-E-LINK."""
        here = self.root
        components = key.split("/")
        for number, component in enumerate(components):
            here = here / component
            try:
                status = os.lstat(here)
            except (FileNotFoundError, NotADirectoryError):
                return None
            wanted = stat.S_ISREG if number == len(components) - 1 else stat.S_ISDIR
            if not wanted(status.st_mode):
                raise RefusalError("UCP-E-LINK", key, "a link or a special file")
        return status.st_size

    def read(self, key: str) -> bytes:
        """Return the whole object; UCP-E-MISSING where there is none."""
        if self.size(key) is None:
            raise RefusalError("UCP-E-MISSING", key)
        return (self.root / key).read_bytes()

    def keys(self) -> set[str]:
        """Return the keys of all files."""
        return {
            (Path(folder) / name).relative_to(self.root).as_posix()
            for folder, _, names in os.walk(self.root)
            for name in names
        }
