"""Trace context from publish to handler, and the current delivery of a thread or task. Imported by log, which
publishes, and everything above it."""
