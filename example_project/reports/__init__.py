"""Everyday jobs of the example: one every few seconds, a task whose result is asked for, and the nightly reports."""
