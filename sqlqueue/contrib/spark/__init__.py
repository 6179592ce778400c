"""The log as data: PySpark's data source, the archive, and the commands on them. `INSTALLED_APPS` has
"sqlqueue.contrib.spark" for it."""
