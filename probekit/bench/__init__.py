"""Experiments as data: one trained state, every method on it, tuned alike and judged beside retraining."""
