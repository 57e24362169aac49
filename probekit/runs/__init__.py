"""Runs: what was trained, by whom, on which rows, and every request since."""
