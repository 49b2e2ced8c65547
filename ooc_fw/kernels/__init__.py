"""Kernels, and blocks of kernel values with bounds on their rounding."""
