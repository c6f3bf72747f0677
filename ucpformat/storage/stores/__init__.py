"""Where objects lie: directories, object stores, and how each commits (SPEC section 8)."""
