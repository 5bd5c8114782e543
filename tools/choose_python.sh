#!/bin/sh
# Prints the interpreter for the virtual environment: python3 if it is an optimised build, else the
# newest supported one that is, else the first that foldmq can use. Arguments: the candidates.
here=$(dirname "$0")
first= problem=
[ $# -gt 0 ] || set -- python3 python3.14 python3.13 python3.12 python3.11 \
  /usr/local/bin/python3 /usr/bin/python3 /usr/bin/python3.14 /usr/bin/python3.13 \
  /usr/bin/python3.12 /usr/bin/python3.11
for candidate in "$@"; do
  python=$("$candidate" -c 'import sys; print(sys.executable)' 2>/dev/null) || {
    problem="${problem:-there is no $candidate}"; continue; }
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    problem="foldmq needs Python 3.11 or newer, $candidate is not: make PYTHON=python3.x"; continue; }
  "$python" -c 'import ensurepip, venv' 2>/dev/null || {
    problem="$python has no venv module (on Debian: apt install python3-venv)"; continue; }
  first=${first:-$python}
  if [ "$("$python" "$here/../cli/common/interpreter.py")" != plain ]; then
    echo "$python"
    exit 0
  fi
done
if [ -z "$first" ]; then
  echo "${problem:-foldmq needs Python 3.11 or newer}" >&2
  exit 1
fi
echo "$first was built without --enable-optimizations: foldmq needs about a quarter more CPU" >&2
echo "$first"
