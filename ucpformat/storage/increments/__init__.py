"""What an increment shares with its base, and what it has to write (SPEC sections 8.5 and 16.4)."""
