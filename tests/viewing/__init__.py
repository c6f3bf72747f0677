"""Tests of the page: its parts without a browser, and the whole in a headless Chromium where there is one."""
