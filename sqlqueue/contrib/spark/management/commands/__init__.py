"""One command a module; `manage.py help` lists them."""
