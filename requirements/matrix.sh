#!/bin/sh
# Runs the suite on SQLite with each Python that is named and is here: matrix.sh MAKE 3.10 3.11 …
# Each has a virtual environment of its own (.venv-3.10), with the newest Django that it can have. All are run whatever
# fails; the end says how each went, and the status is 1 if one failed or none was found.
set -u
make=$1
shift
said=""
status=0
ran=""

for version in "$@"; do
    python=python$version
    # A version manager's stand-in is on the path, too, and runs nothing.
    if [ "$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)" != "$version" ]; then
        said="$said
Python $version: not found"
        continue
    fi
    ran=yes
    folder=.venv-$version
    if ! "$make" PYTHON="$python" VENV="$folder" "$folder/.newest"; then
        said="$said
Python $version: its virtual environment could not be made"
        status=1
        continue
    fi
    django=$("$folder/bin/python" -m django --version)
    echo "Python $version, Django $django"
    if "$make" PYTHON="$python" VENV="$folder" test-sqlite; then
        said="$said
Python $version, Django $django: passed"
    else
        said="$said
Python $version, Django $django: failed"
        status=1
    fi
done

echo "$said"
if [ -z "$ran" ]; then
    echo "None of these is here: the suite has not been run." >&2
    exit 1
fi
exit $status
