"""The commands of `manage.py`: they parse arguments, call the other packages and print. No package imports this one."""
