"""Heads and networks as values, how they are scored, saved and used as scikit-learn estimators."""
