"""The benchmark of unlearning: every method beside retraining, by one command."""
