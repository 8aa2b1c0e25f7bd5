"""Tests of kernels/cpu."""
