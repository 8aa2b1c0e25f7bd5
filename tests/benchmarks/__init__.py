"""Tests of the benchmarks that have a contract."""
