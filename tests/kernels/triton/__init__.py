"""Tests of kernels/triton."""
