"""The log as data: PySpark's data source, and the archive. Only commands import it; its executors import no Django."""
