"""Triton kernels, one op per file."""
