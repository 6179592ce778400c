"""Batches: messages that are followed as one group of work. `INSTALLED_APPS` has "sqlqueue.contrib.batches" for it."""
