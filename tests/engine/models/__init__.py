"""Tests of `engine/models`."""
