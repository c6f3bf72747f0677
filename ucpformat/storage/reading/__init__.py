"""From stored objects to boxes of slots: plan, fetch, verify, place (SPEC section 17)."""
