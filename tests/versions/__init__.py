"""What is tried with other versions of Python and of what we depend on: `make test-versions` (`table.toml`)."""
