"""Turns, candidates, branches and live generations: where engine and storage meet."""
