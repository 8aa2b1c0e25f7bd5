"""Tests of `engine/layers`."""
