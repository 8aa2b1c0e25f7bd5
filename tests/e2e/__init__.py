"""Tests; the tree mirrors the project."""
