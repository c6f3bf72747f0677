"""Campaigns: thousands of runs under what goes wrong. `make campaigns` runs them; the tests run a short form."""
