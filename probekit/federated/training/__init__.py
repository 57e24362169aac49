"""Trainers: closed form, FedAvg, L-BFGS rounds."""
