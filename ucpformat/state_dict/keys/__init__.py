"""Names, groups and documents of states: what the keys of state dicts mean (SPEC section 15, appendix A.1)."""
