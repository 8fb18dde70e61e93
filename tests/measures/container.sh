#!/bin/sh
# Builds the image, starts it, and asks the embedded model: tests/measures/container.sh [docker|podman] [BUILD FLAGS]
set -eu
engine=${1:-docker}
[ $# -gt 0 ] && shift
cd "$(dirname "$0")/../.."
"$engine" build -f containers/Containerfile -t eaglelocal-trial "$@" .
id=$("$engine" run -d -e EAGLELOCAL_TARGET=demo -p 127.0.0.1:18421:8421 eaglelocal-trial)
trap '"$engine" stop "$id" > /dev/null; "$engine" rm "$id" > /dev/null' EXIT
tries=0
until curl -sf http://127.0.0.1:18421/health > /dev/null; do
    tries=$((tries + 1))
    [ "$tries" -lt 120 ] || { "$engine" logs "$id"; exit 1; }
    sleep 1
done
key=$("$engine" exec "$id" cut -d' ' -f2 /state/keys)
curl -sf http://127.0.0.1:18421/v1/chat/completions -H "authorization: Bearer $key" -H "content-type: application/json" \
    -d '{"messages": [{"role": "user", "content": "What is acceptance length?"}], "max_tokens": 40}'
echo
status=$(curl -s -o /dev/null -w '%{http_code}' http://127.0.0.1:18421/v1/models)
[ "$status" = 401 ] || { echo "without the key: $status, expected 401"; exit 1; }
echo "the image serves; without the key it answers $status"
