#!/bin/sh
# Makes a virtual environment that has pip: venv.sh PYTHON FOLDER
# Debian's python3 without python3-venv has no ensurepip; then the pip outside installs the one inside.
set -eu
python=$1
folder=$2

if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "sqlqueue needs Python 3.10 or newer, and '$python' is not. Name another one: make PYTHON=/path/to/python3" >&2
    exit 1
fi
if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv --clear "$folder"; then
    exit 0
fi
if "$python" -m venv --clear --without-pip "$folder" &&
    "$python" -m pip --python "$folder/bin/python" install --quiet pip; then
    exit 0
fi
rm -rf "$folder"
echo "No virtual environment could be made with '$python'." >&2
echo "On Debian and Ubuntu: apt-get install python3-venv (or python3-pip, 22.3 or newer). Then run make again." >&2
exit 1
