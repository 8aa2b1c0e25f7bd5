"""Alembic's migrations, run by storage/migrate.py. New ones: versions/NNNN_what.py, upgrade only."""
