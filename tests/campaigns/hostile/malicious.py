"""`python -m tests.campaigns.hostile.malicious`: at least 500 malicious sources of every format, each converted.

Each has one thing that somebody who means harm would put there: a link, a pipe, a name that leads elsewhere, a file
with a hole of a terabyte, a number, a text or an opcode in every place that takes one, records that lie on top of one
another, values that nest. A conversion ends with a registered error, or with 0; then what it wrote validates with 0
problems. Nothing outside the source is opened, and `Watch`'s bounds hold. Ends with 1 where that is not so.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.campaigns.hostile.instead import INSTEAD, empty, link_out, loop
from tests.campaigns.hostile.mutations import INTEGERS, SNIPPETS, TEXTS, opcodes
from tests.campaigns.hostile.sealing import sealed
from tests.campaigns.hostile.seeds import SEEDS, SUFFIXES, Document, seeds_of, written
from tests.campaigns.hostile.targets import changed, convert_and_validate
from tests.campaigns.hostile.watch import Watch

__all__ = ["Case", "cases_of"]

LEAST: Final = 500


class Case(NamedTuple):
    """A source that does harm: ``make`` puts it at a path where nothing is, beside a directory ``outside``."""

    name: str
    make: Callable[[Path], object]


def cases_of(format_name: str, seeds: list[Document], draw: random.Random, count: int) -> Iterator[Case]:
    """``count`` cases of a format: a third of what can be done to files, then what stands in them, and mutations."""
    placed = [case for seed in seeds for case in _placed(seed)]
    draw.shuffle(placed)
    few = placed[: count // 3]
    yield from few
    for number in range(len(few), count):
        seed = draw.choice(seeds)
        if draw.random() < 0.75:
            yield _said(format_name, seed, draw)
            continue
        document: Document = seed
        for _ in range(draw.choice((1, 2, 4))):
            document = changed(document, draw, seeds)
        yield _of(f"mutation {number}", format_name, document)


def _of(name: str, format_name: str, document: Document) -> Case:
    return Case(name, partial(written, sealed(document) if format_name == "ucp" else document))


def _placed(seed: Document) -> Iterator[Case]:
    """Each file, and each directory, as something else."""
    folders = sorted({str(Path(name).parent) for name in seed} - {"."})
    for name in seed:
        for what, change in INSTEAD.items():
            yield Case(f"{what} for {name!r}", partial(_changed, seed, name, change))
    for folder in folders:
        yield Case(f"link out for {folder!r}", partial(_changed, seed, folder, link_out))
        yield Case(f"loop for {folder!r}", partial(_changed, seed, folder, loop))
        yield Case(f"file for {folder!r}", partial(_changed, seed, folder, empty))


def _changed(seed: Document, name: str, change: Callable[[Path, Path], object], place: Path) -> None:
    written(seed, place)
    change(place / name if name else place, place.parent / "outside")


def _said(format_name: str, seed: Document, draw: random.Random) -> Case:
    """One place within one file with what it must not have."""
    name = draw.choice(list(seed))
    data = seed[name]
    if name and draw.random() < 0.03:
        text = draw.choice(("a" * 300, "\x1b[2J\n", ".hidden", "ü"))
        return _of(f"{name} as {text[:20]!r}", format_name, {**seed, f"{name}{text}"[-250:]: data})
    what, other = _content(data, draw)
    return _of(f"{name}: {what}", format_name, {**seed, name: other})


def _content(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    way: Callable[[bytes, random.Random], tuple[str, bytes]] = _cut
    if draw.random() < 0.95:
        if data[:1] in (b"{", b"["):
            way = _json
        elif data[8:9] == b"{":
            way = _safetensors
        elif data[:4] == b"PK\3\4":
            way = _archive
        elif data[:1] == b"\x80":
            way = _pickle
    try:
        return way(data, draw)
    except (ValueError, IndexError):  # of no such form after all
        return _cut(data, draw)


def _cut(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.5:
        stop = draw.choice((0, 1, 7, 8, 64, len(data) // 3, max(0, len(data) - 1)))
        return f"cut at {stop}", data[:stop]
    if draw.random() < 0.3:
        return "twice", data * 2
    if draw.random() < 0.5:
        value = draw.choice((0, 1, 2, 255))
        return f"bytes of {value}", bytes([value]) * len(data)
    place, value = draw.randrange(len(data) + 1), draw.choice(INTEGERS) % 2**64
    return f"{value} at byte {place}", data[:place] + value.to_bytes(8, "little") + data[place + 8 :]


def _safetensors(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.1:
        number = draw.choice(INTEGERS)
        return f"a header of {number}", (number % 2**64).to_bytes(8, "little") + data[8:]
    size = int.from_bytes(data[:8], "little")
    what, header = _json(data[8 : 8 + size], draw)
    return what, len(header).to_bytes(8, "little") + header + data[8 + size :]


_VALUES: Final[tuple[Any, ...]] = (
    *INTEGERS, *TEXTS, None, True, [], {}, [[]], float("nan"), float("inf"), 1e308, 0.5, [1] * 33, ["../x"], {"": 0},
)  # fmt: skip
_TEXTUAL: Final[dict[str, Callable[[bytes], bytes]]] = {
    "deep lists": lambda _: b"[" * 100_000 + b"]" * 100_000,
    "deep objects": lambda _: b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "a name twice": lambda data: data.replace(b"{", b'{"a":1,"a":2,', 1),
    "many names": lambda _: b"{" + b",".join(b'"%d":0' % number for number in range(50_000)) + b"}",
    "NaN": lambda data: data.replace(b":", b":NaN,", 1),
    "a long number": lambda data: data.replace(b":", b":" + b"9" * 10_000 + b",", 1),
    "a lone surrogate": lambda data: data.replace(b'"', b'"\\ud800', 1),
}


def _json(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.05:
        what = draw.choice(list(_TEXTUAL))
        return what, _TEXTUAL[what](data)
    document = json.loads(data)
    places: list[tuple[Any, Any]] = [({"": document}, "")]
    for holder, key in places:
        item = holder[key]
        keys = item.keys() if isinstance(item, dict) else range(len(item)) if isinstance(item, list) else ()
        places += [(item, below) for below in keys]
    holder, key = draw.choice(places[1:])
    if draw.random() < 0.1:
        del holder[key]
        what = f"without {key!r:.40}"
    elif isinstance(holder, dict) and draw.random() < 0.15:
        text = draw.choice(TEXTS)
        holder[text] = holder.pop(key)
        what = f"{key!r:.40} as {text[:20]!r}"
    elif isinstance(holder[key], list) and draw.random() < 0.3:
        holder[key] = (holder[key] or [0]) * draw.choice((2, 33, 10_000))
        what = f"{key!r:.40} many times"
    else:
        value = draw.choice(_VALUES)
        holder[key] = value
        what = f"{value!r:.30} at {key!r:.40}"
    return what, json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _pickle(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    codes = opcodes(data)
    if draw.random() < 0.1:
        depth = draw.choice((30, 64, 5000, 100_000))
        bombs = {
            "doubles": b")q\xc8" + b"h\xc8h\xc8\x86q\xc8" * depth + b"0",
            "nested lists": b"]" * depth + b"a" * (depth - 1) + b"0",
            "nested tuples": b")" + b"\x85" * depth + b"0",
            "a list within itself": b"]q\xc8h\xc8a0",
            "a nested key": b"})" + b"\x85" * depth + b"Ns0",
            "equal keys": b"}" + b"K\1Ns" * depth + b"0",
            "marks": b"(" * depth,
        }
        what = draw.choice(list(bombs))
        return f"{what}, {depth}", codes[0] + bombs[what] + b"".join(codes[1:])
    texts = [at for at, code in enumerate(codes) if code[:1] in b"X\x8c" and code]
    numbers = [at for at, code in enumerate(codes) if code[:1] in b"KMJ\x8a" and code]
    chance = draw.random()
    if chance < 0.3 and texts:
        at, text = draw.choice(texts), draw.choice(TEXTS)
        raw = text.encode("utf-8", "surrogatepass")
        codes[at] = b"X" + len(raw).to_bytes(4, "little") + raw
        what = f"{text[:20]!r} at {at}"
    elif chance < 0.65 and numbers:
        at, number = draw.choice(numbers), draw.choice(INTEGERS)
        codes[at] = b"\x8a\x10" + number.to_bytes(16, "little", signed=True)
        what = f"{number} at {at}"
    else:
        at, snippet = draw.randrange(1, len(codes)), draw.choice(SNIPPETS)
        codes.insert(at, snippet)
        what = f"{snippet!r:.30} before {at}"
    return what, b"".join(codes)


def _archive(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    if draw.random() < 0.25:
        return _directory(data, draw)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    pickles = [name for name in records if name.endswith(".pkl")]
    name = draw.choice(pickles) if pickles and draw.random() < 0.7 else draw.choice(list(records))
    match draw.randrange(12):
        case 0:
            text = draw.choice(
                ("../outside/secret", "/etc/hostname", "a\\b", "archive/data/../../x", "x" * 60_000)
            )
            renamed = {text if key == name else key: value for key, value in records.items()}
            return f"{name} as {text[:20]!r}", _zipped(renamed)
        case 1:
            return f"without {name}", _zipped({key: value for key, value in records.items() if key != name})
        case 2:
            return "compressed", _zipped(records, zipfile.ZIP_DEFLATED)
        case 3:
            return f"{name} as a bomb", _zipped({**records, name: bytes(64 << 20)}, zipfile.ZIP_DEFLATED)
        case 4:
            many = {f"archive/data/x{number}": b"" for number in range(draw.choice((10, 5000)))}
            return "many records", _zipped({**records, **many})
        case _:
            what, other = _content(records[name], draw)
            return f"{name}: {what}", _zipped({**records, name: other})


def _directory(data: bytes, draw: random.Random) -> tuple[str, bytes]:
    """The central directory of an archive: its fields, and entries that lie on top of one another."""
    place = data.rfind(b"PK\5\6")
    end = data[place:]
    start = int.from_bytes(end[16:20], "little")
    body, entries = data[:start], data[start:place]
    match draw.randrange(3):
        case 0:
            times = draw.choice((1, 2, 200, 1000))
            more = entries + entries[entries.rfind(b"PK\1\2") :] * times
            count = int.from_bytes(end[10:12], "little") + times
            sizes = (count % 65536).to_bytes(2, "little") * 2 + len(more).to_bytes(4, "little")
            return f"the last record {times} times more", body + more + end[:8] + sizes + end[16:]
        case 1:
            field, value = draw.choice((8, 10, 12, 14, 16, 18, 20)), draw.choice((0, 1, 255, 65535))
            changed_end = end[:field] + value.to_bytes(2, "little") + end[field + 2 :]
            return f"end field {field} of {value}", body + entries + changed_end
        case _:
            field = draw.choice((6, 8, 10, 14, 16, 20, 24, 28, 30, 32, 42, 44))
            value = draw.choice((0, 1, 8, 255, 65535))
            changed_entries = entries[:field] + value.to_bytes(2, "little") + entries[field + 2 :]
            return f"entry field {field} of {value}", body + changed_entries + end


def _zipped(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in records.items():
            archive.writestr(name, content)
    return out.getvalue()


def _run(format_name: str, count: int, first: int, folder: Path, found: Path) -> int:
    """All cases of a format in this process."""
    warnings.simplefilter("ignore")
    scratch = folder / format_name
    scratch.mkdir(parents=True)
    seeds = seeds_of(format_name, folder / "seeds")
    for number, seed in enumerate(seeds):
        convert_and_validate(
            format_name,
            written(seed, scratch / f"seed{number}{SUFFIXES.get(format_name, '')}"),
            scratch / "out",
        )
    watch = Watch(*[scratch / name for name in ("in", "out")], work=scratch)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    slowest, largest = 0.0, 0
    for case in cases_of(format_name, seeds, random.Random(first), count):
        for name in ("in", "outside", "out"):
            place = scratch / name
            shutil.rmtree(place, ignore_errors=True)
            place.unlink(missing_ok=True)
        source = scratch / "in" / f"source{SUFFIXES.get(format_name, '')}"
        source.parent.mkdir()
        try:
            case.make(source)
        except (OSError, ValueError):
            continue  # what this file system does not store is no threat
        (scratch / "case").write_text(ascii(case.name))
        seen = watch.run(lambda place=source: convert_and_validate(format_name, place, scratch / "out"))  # type: ignore[misc]
        outcomes[seen.outcome] += 1
        slowest, largest = max(slowest, seen.seconds), max(largest, seen.nbytes)
        if seen.wrong:
            wrong.append(f"{case.name}: {seen.wrong}")
            kept = found / f"{format_name}-{len(wrong)}"
            is_plain = source.is_dir() and not any(path.is_fifo() for path in source.rglob("*"))
            if len(wrong) <= 20 and is_plain:
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(source, kept, symlinks=True)
    print(
        f"{format_name:18}{sum(outcomes.values()):>7,} files{outcomes['ok']:>6,} converted{slowest:>8.3f} s"
        f"{largest / 2**20:>8.1f} MiB{len(wrong):>5} wrong  "
        + " ".join(f"{code.removeprefix('UCP-E-')}:{number}" for code, number in outcomes.most_common(8))
    )
    for one in wrong[:20]:
        print(f"WRONG: {format_name}: {one}"[:600])
    return 1 if wrong else 0


def main() -> int:
    """Run each format in a process of its own, and say what was run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=LEAST)
    parser.add_argument("--first", type=int, default=0, help="what chooses the cases")
    parser.add_argument("--formats", default=",".join(SEEDS))
    parser.add_argument("--found", type=Path, default=Path("out/malicious"))
    parser.add_argument("--in", dest="folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.folder is not None:
        return _run(options.formats, options.count, options.first, options.folder, options.found)
    memory = Path("/dev/shm")
    options.found.mkdir(parents=True, exist_ok=True)
    status = 0
    for format_name in options.formats.split(","):
        with tempfile.TemporaryDirectory(
            dir=memory if memory.is_dir() else None, prefix="ucp-malicious-"
        ) as name:
            command = [
                sys.executable,
                "-m",
                "tests.campaigns.hostile.malicious",
                "--in",
                name,
                "--formats",
                format_name,
            ]
            more = ["--count", options.count, "--first", options.first, "--found", options.found.resolve()]
            returned = subprocess.run([*command, *map(str, more)], check=False).returncode
            if returned < 0:
                case = Path(name, format_name, "case").read_text()
                print(f"WRONG: {format_name}: the process was ended by signal {-returned} at {case}")
            status |= abs(returned)
    return 1 if status else 0


if __name__ == "__main__":
    sys.exit(main())
