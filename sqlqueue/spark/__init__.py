"""The log as data: a data source for PySpark. Nothing else of sqlqueue imports this; executors need no Django."""
