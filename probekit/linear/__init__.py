"""Linear models on embeddings: sums of rows, ridge, exact leave-one-out, calibration, k-NN."""
