"""The admin's actions on chosen rows: each asks for its parameters and a confirmation, calls an operation, and is
written to Django's log. Only `sqlqueue.admin` imports it."""
