#!/bin/sh
# The container's first process: `fathom serve` with what is given behind the image's name.
set -eu
model=/model
[ -f "$model/config.json" ] || model=/usr/local/share/fathom/fathom-tiny
exec /usr/local/bin/fathom serve "$model" --host 0.0.0.0 --port 8000 --cache-folder /var/cache/fathom "$@"
