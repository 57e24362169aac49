"""Runs: federated training and unlearning, written to a folder."""
