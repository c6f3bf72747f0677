"""``python -m ucpformat``."""

from ucpformat.cli import main

if __name__ == "__main__":
    main(prog_name="ucp")
