"""How time, memory and documents grow: with ranks, atoms, bytes and layouts."""
