"""Whole networks, linearized by JVP: products, kernels, solvers. Needs torch."""
