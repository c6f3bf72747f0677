from __future__ import annotations

import json
from pathlib import Path

from tests.cli.conftest import Make, Ucp
from ucpformat.reader import open_checkpoint


def digest_of(path: Path) -> str:
    with open_checkpoint(path) as checkpoint:
        return checkpoint.digest


def test_what_was_restored_is_said(ucp: Ucp, make: Make) -> None:
    broken, good = make("broken.ucp"), make("good.ucp")
    (pack,) = (broken / "packs").iterdir()
    data = pack.read_bytes()
    pack.unlink()
    planned = json.loads(ucp("repair", broken, "--from", good, "--dry-run", "--format", "json").stdout)
    assert not pack.exists()
    result = ucp("repair", broken, "--from", good)
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"restored packs/{pack.name}: 16.00 KiB from {good}",
        f"{broken}: whole again",
    ]
    assert pack.read_bytes() == data
    (restored,) = planned["restored"]
    assert (planned["whole"], planned["dry_run"], planned["problems"]) == (True, True, [])
    assert restored == {"key": f"packs/{pack.name}", "bytes": 16388, "from": [str(good)], "whole": True}
    assert planned["digest"] == digest_of(broken)
    assert ucp("repair", broken, "--from", good).stdout == f"{broken}: nothing is damaged\n"


def test_what_stays_lost_is_named(ucp: Ucp, make: Make) -> None:
    broken, other = make("broken.ucp"), make("other.ucp", first=5)
    (pack,) = (broken / "packs").iterdir()
    pack.unlink()
    result = ucp("repair", broken, "--from", other)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"restored packs/{pack.name}: 12.00 KiB from {other}, in part",
        f"error UCP-E-MISSING at packs/{pack.name}: what it lacks is in none of the others",
        "lost: layer.[bold]w[/bold] value [:16, :] of [64, 64]",
        "survives: 12.00 KiB of 16.00 KiB; 2 tensors whole, 1 in part, 0 not at all",
        f"{broken}: still not whole",
    ]


def test_the_digest_in_a_line(ucp: Ucp, make: Make) -> None:
    one, other = make("one.ucp"), make("other.ucp", first=5)
    digest = digest_of(one)
    result = ucp("digest", one, other)
    assert result.stdout == f"{digest}  {one}\n{digest_of(other)}  {other}\n"
    assert json.loads(ucp("digest", one, "--format", "json").stdout) == {
        "digests": [{"checkpoint": str(one), "digest": digest}],
        "verified": False,
    }
    assert ucp("digest", one, "--check", digest).exit_code == 0
    assert ucp("digest", one, "--check", digest.partition(":")[2]).exit_code == 0
    refused = ucp("digest", other, "--check", digest)
    assert refused.exit_code == 1
    assert "it is another one" in refused.stderr


def test_the_digest_is_verified_where_that_is_asked_for(ucp: Ucp, make: Make) -> None:
    path = make("one.ucp")
    next((path / "packs").iterdir()).unlink()
    assert ucp("digest", path).exit_code == 0
    refused = ucp("digest", path, "--verify")
    assert refused.exit_code == 1
    assert "UCP-E-MISSING" in refused.stderr
