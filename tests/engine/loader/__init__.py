"""Tests of `engine/loader`."""
