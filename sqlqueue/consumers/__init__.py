"""Consumer processes and pull loops: they own partitions, read, dispatch to handlers and settle. Only commands, checks
and `sqlqueue.testing` import this package."""
