"""The engine's operations on the tables: publish, fetch, settle, schedule, collect. Every package above imports it; it
imports only `core`, `database`, `tracing`, `models`, `conf` and `signals`.
"""
