"""Template tags and filters, for the templates of `sqlqueue.admin` only."""
