"""Consumer processes as the operating system sees them: supervisor, worker, liveness and endpoints. `runconsumers`
starts them."""
