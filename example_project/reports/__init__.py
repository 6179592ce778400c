"""Everyday jobs of the example: one that runs every few seconds, and a task whose result is asked for."""
