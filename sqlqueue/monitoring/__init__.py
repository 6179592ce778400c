"""Metrics, health, logs, and the HTTP server that serves them. Imported by consumers and what lies above
them."""
