#!/bin/sh
# tool/demo/picture.sh [AURA [PNG]]: the top of the page that `aura demo` writes, as a browser draws it, in doc/demo.png.
#
# AURA is the tool (build/release/aura). Run it on an idle machine: the times on the page are those of this run. The browser is
# Debian's chromium; `tool/setup.sh picture` installs it, and this script only says when it is missing.
set -eu
cd "$(dirname "$0")/../.."
aura=${1-build/release/aura} png=${2-doc/demo.png}
most_bytes=256000 # everybody who clones the tree fetches the picture

command -v "$aura" >/dev/null || { echo "picture.sh: no tool at $aura; make build" >&2; exit 1; }
command -v chromium >/dev/null || { echo 'picture.sh: chromium is missing; tool/setup.sh picture installs it' >&2; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM
"$aura" demo --html "$work/demo.html" >"$work/demo.txt" 2>"$work/demo.err" || { cat "$work/demo.err" >&2; exit 1; }
cat "$work/demo.txt"
if grep -q 'machine was busy' "$work/demo.txt"; then
    echo 'picture.sh: no picture of these times; try again when the machine is idle' >&2
    exit 1
fi

sandbox=
[ "$(id -u)" != 0 ] || sandbox=--no-sandbox # root has no sandbox, and the page is our own
# At this width and height the picture ends below the third chart: memory, time, error.
timeout 120 chromium --headless $sandbox --disable-gpu --hide-scrollbars --force-device-scale-factor=0.8 \
    --window-size=960,2458 --user-data-dir="$work/profile" --screenshot="$work/demo.png" "file://$work/demo.html" \
    >"$work/chromium.txt" 2>&1 || true
[ -s "$work/demo.png" ] || { cat "$work/chromium.txt" >&2; echo 'picture.sh: chromium drew nothing' >&2; exit 1; }

# Which version this is a picture of: a chunk of text behind the header, which test/run.sh reads.
python3 - "$work/demo.png" "aura $("$aura" version)" <<'END'
import struct, sys, zlib
png = open(sys.argv[1], 'rb').read()
text = b'tEXtSoftware\0' + sys.argv[2].encode()
chunk = struct.pack('>I', len(text) - 4) + text + struct.pack('>I', zlib.crc32(text))
open(sys.argv[1], 'wb').write(png[:33] + chunk + png[33:])
END
bytes=$(wc -c <"$work/demo.png")
[ "$bytes" -le $most_bytes ] || { echo "picture.sh: $bytes bytes, more than $most_bytes" >&2; exit 1; }
cp "$work/demo.png" "$png"
echo "$png: $bytes bytes, of aura $("$aura" version)"
