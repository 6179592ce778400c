"""A durable, partitioned, replayable message log with consumer groups in your Django project's own database."""

__version__ = "0.1.0"
