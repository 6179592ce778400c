"""Metrics, health, logs, the doctor, and the HTTP server that serves them. Imported by consumers and what lies above
them."""
