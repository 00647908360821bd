#!/bin/bash
# Write requirements.lock: the newest versions that pyproject.toml's ranges allow.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3.11 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check --upgrade setuptools
# Build from a copy, because a build leaves a folder in the source.
mkdir "$work/kinst"
git ls-files -z | xargs -0 cp --parents -t "$work/kinst"
"$work/venv/bin/python" -m pip install -qq --disable-pip-version-check "$work/kinst[test]"
{
    echo "# Made by setup/lock.sh from pyproject.toml; setuptools is what installs kinst itself."
    # pip freeze leaves out the markers of pyproject.toml.
    "$work/venv/bin/python" -m pip freeze --all --exclude pip --exclude kinst |
        sed '/^iced-x86==/s/$/; platform_machine == "x86_64"/'
} >"$work/lock"
mv "$work/lock" requirements.lock
echo "requirements.lock: $(grep -c == requirements.lock) packages"
