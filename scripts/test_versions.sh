#!/bin/sh
# The smoke tests under each supported release of transformers, each in a virtual environment of its own.
# usage: scripts/test_versions.sh [RELEASE...]
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
TORCH=$(sed -n 's/^torch==//p' constraints.txt)
NEWEST=$(sed -n 's/^transformers==//p' constraints.txt)
failed=""
for release in ${*:-4.48.3 4.57.6 5.12.0 "$NEWEST"}; do
    home=.venvs/tf-$release
    test -d "$home" || "$PYTHON" -m venv "$home"
    "$home/bin/python" -m pip install --quiet -e . "torch==$TORCH" "transformers==$release" pytest pytest-timeout
    echo "transformers $release"
    "$home/bin/python" -m pytest -q -m smoke tests/test_versions.py || failed="$failed $release"
done
test -z "$failed" || { echo "failed under:$failed"; exit 1; }
