"""Arithmetic over paged memory."""
