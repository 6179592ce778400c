"""How the queue speaks SQL: dialects, transactions and retries, the publish gate, the horizon. Every package but `core`
imports it; it imports only `core`, `conf`, `signals` and `exceptions`.
"""
