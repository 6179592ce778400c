"""The REST endpoints for health and status. Only `sqlqueue.urls` and a project's own URLs import it."""
