#!/usr/bin/env bash
# scripts/browser.sh [PYTEST OPTION...]: builds a release of the server and tests its page in a headless Chromium, with the
# distribution's browser, driver and Python packages.
#
#   scripts/browser.sh                          all of it
#   scripts/browser.sh -k hostile               only the tests whose name contains "hostile"
#   FATHOM_SHOTS=FOLDER scripts/browser.sh      keeps pictures of the page there, to be looked at
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1-}" in -h | --help) usage; exit 0 ;; esac
scripts/deps.sh --browser
build release fathom
note "testing the page"
export PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 -m pytest -q -p no:cacheprovider --durations=5 tests/browser "$@"
