"""Handlers that the tests' own processes run."""
