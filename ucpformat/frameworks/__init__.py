"""Framework adapters: what people have, in and out. Frameworks are imported when used (SPEC appendix A)."""
