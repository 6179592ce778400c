#!/bin/sh
# Prints the Python for the comparison with peers: peers-python.sh PYTHON
# One of 3.13, 3.12 and 3.14, for django-ox wants 3.12 or newer; without any of them the one that was named.
for version in 3.13 3.12 3.14; do
    for python in "python$version" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$version".*/bin/python; do
        # A version manager's stand-in is on the path, too, and runs nothing.
        if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" = "$version" ]; then
            echo "$python"
            exit 0
        fi
    done
done
echo "$1"
