#!/usr/bin/env bash
# scripts/clients.sh [PYTEST OPTION...]: builds a release of the server and drives it with the clients that people use:
# the openai, anthropic and litellm packages, schemathesis over /openapi.json, and a short soak. The packages, of fixed
# versions, are installed once into build/clients.
#
#   scripts/clients.sh                          all of it
#   scripts/clients.sh -k anthropic             only the tests whose name contains "anthropic"
#   scripts/clients.sh --python SCRIPT OPTION...  runs a script of tests/clients instead, as soak.py or load.py
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in -h | --help) usage; exit 0 ;; esac
scripts/deps.sh --clients
build release fathom
build release fathom_scripted_server

venv=$PWD/build/clients/venv
stamp=$venv/installed
if ! cmp -s tests/clients/requirements.txt "$stamp"; then
  note "installing the clients in $venv"
  rm -rf "$venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-virtualenv --no-deps \
    -r tests/clients/requirements.txt >&2
  cp tests/clients/requirements.txt "$stamp"
fi
export PYTHONDONTWRITEBYTECODE=1
if [ "${1-}" = --python ]; then
  shift
  exec "$venv/bin/python" "$@"
fi
note "driving the server"
exec "$venv/bin/python" -m pytest -q --no-header -p no:cacheprovider --durations=5 -c tests/clients/pytest.ini tests/clients "$@"
