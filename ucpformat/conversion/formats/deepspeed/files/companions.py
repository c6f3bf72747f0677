"""The files beside DeepSpeed's own: carried as blobs, or named in the report.

Whoever calls ``save_checkpoint`` often puts files of its own beside the tag: Hugging Face's Trainer
(``trainer_state.json``, ``scheduler.pt``, ``rng_state_<rank>.pth``, ``config.json``), Accelerate's ``save_state``
(``random_states_<rank>.pkl``, ``scheduler.bin``). They are kept byte for byte, and an exporter that writes a directory
puts them back. What they hold is not looked into, but for whether it is whole.
"""

from __future__ import annotations

import io
import json
import pickletools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ucpformat.conversion.contract.foreign import PICKLE, Lost
from ucpformat.errors import error
from ucpformat.tensor_files.byte_source import open_range
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import require_saved_name
from ucpformat.tensor_files.torch_zip import TorchArchive

__all__ = ["TAG_FILES", "Blobs", "blob_files", "companions"]

Blobs = dict[str, tuple[str, bytes]]

TAG_FILES: Final = "tag/"
"""What the names of blobs begin with whose files lie in the tag's directory, and not beside it."""

POINTERS: Final = ("latest", "latest_universal")
_SCRIPTS: Final = ("zero_to_fp32.py", "zero_to_torch.py")
_WEIGHTS: Final = re.compile(
    r"(?:model|pytorch_model|adapter_model|diffusion_pytorch_model)(?:-\d+-of-\d+)?"
    r"(?:\.safetensors|\.bin)(?:\.index\.json)?"
)
_MAX_BLOB: Final = 64 << 20
_MEDIA_TYPES: Final = {".json": "application/json", ".md": "text/markdown", ".txt": "text/plain"}
_NAME: Final = re.compile(r"(?!\.)[^/\\\x00-\x1f:]{1,200}")
_ZIP: Final = b"PK\x03\x04"
_OLD: Final = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch's files began before they were archives: a pickle of its magic number."""
_OLD_PICKLES: Final = 5  # magic number, version, machine, object, storages


def companions(root: Path, own: Callable[[str], bool], prefix: str = "") -> tuple[Blobs, list[Lost]]:
    """Return the files in ``root`` that are not DeepSpeed's ``own``, by name, and those that are left out.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, where one of JSON or of torch is cut short or damaged, or
            is that of another rank.
    """
    files = SourceFiles(root)
    blobs: Blobs = {}
    lost: list[Lost] = []
    for name in files.names():
        what = f"files/{prefix}{name}"
        if own(name):
            continue
        if name in _SCRIPTS:
            lost.append(Lost(what, "a script that DeepSpeed copies beside every save", matters=False))
        elif name in POINTERS:
            lost.append(Lost(what, "the name of another save", matters=False))
        elif (root / name).is_dir():
            lost.append(Lost(what, "a directory beside the save; convert it by itself", matters=False))
        elif _WEIGHTS.fullmatch(name):
            lost.append(Lost(what, "the weights once more, which are not read", matters=False))
        elif name.startswith(".") or _NAME.fullmatch(name) is None:
            lost.append(Lost(what, "a hidden file, or one of an odd name", matters=False))
        elif files.size(name) > _MAX_BLOB:
            lost.append(
                Lost(what, f"a file of more than {_MAX_BLOB >> 20} MiB, which DeepSpeed did not write")
            )
        else:
            data = files.read(name, _MAX_BLOB)
            _check_whole(files, name, data)
            media_type = _MEDIA_TYPES.get(Path(name).suffix, "application/octet-stream")
            blobs[f"{prefix}{name}"] = (media_type, data)
    return blobs, lost


def _check_whole(files: SourceFiles, name: str, data: bytes) -> None:
    """Refuse a file that says of itself that it is not whole; nothing in it is run."""
    if name.endswith(".json"):
        try:
            json.loads(data)
        except (ValueError, RecursionError) as problem:
            raise error("UCP-E-SOURCE", f"it is no JSON: {problem}", at=name) from None
    elif data.startswith(_ZIP):
        with open_range(files.root / name, 0, len(data), name) as source:
            archive = TorchArchive(source) if _is_torch(name) else None
            if archive is not None:
                archive.check()
                require_saved_name(archive.name, name)
    elif _is_torch(name):
        try:
            stream = io.BytesIO(data)
            for _ in range(_OLD_PICKLES if data.startswith(_OLD) else 1):
                for _ in pickletools.genops(stream):
                    pass
        except Exception as problem:  # pickletools raises whatever it meets
            raise error("UCP-E-SOURCE", f"it is no pickle, or cut short: {problem}", at=name) from None


def _is_torch(name: str) -> bool:
    return name.endswith((".pt", ".pth", ".bin", ".pkl", ".ckpt"))


def blob_files(blobs: Mapping[str, tuple[str, bytes]], tag: str) -> dict[str, str]:
    """Return where an exporter puts the blobs that are files, by name; those that cannot be files are not among them.

    Raises:
        UcpError: ``UCP-E-NAME`` where one has the name of the tag's directory.
    """
    files: dict[str, str] = {}
    for name, (media_type, _) in blobs.items():
        if media_type == PICKLE:
            continue  # a part of a state dict, and no file
        inner = name.removeprefix(TAG_FILES)
        if _NAME.fullmatch(inner) is None or inner in POINTERS:
            continue
        place = f"{tag}/{inner}" if inner != name else name
        if place == tag:
            raise error("UCP-E-NAME", f"{name!r} is the name of the tag's directory; set tag=")
        files[name] = place
    return files
