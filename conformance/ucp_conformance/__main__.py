"""``python -m ucp_conformance``."""

from ucp_conformance.cli import main

main(prog_name="ucp-conformance")
