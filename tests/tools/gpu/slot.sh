#!/usr/bin/env bash
# What holds on this GPU, and how fast it is there: one command, about ten minutes on a large GPU.
#
#   tests/tools/gpu/slot.sh                                   on cuda:0, with .venv of the checkout, else with python3
#   tests/tools/gpu/slot.sh --device cuda:1 --out /tmp/slot   on another device; results go to runs/gpu-slot otherwise
#   tests/tools/gpu/slot.sh --only demo,decoding              some parts only; their names are in tests/tools/gpu/__main__.py
#   tests/tools/gpu/slot.sh --run runs/mine                   a trained run too, beside other engines with its weights
#   tests/tools/gpu/slot.sh --device cpu --quick              the same path on a CPU, in some minutes, to try it out
#   PYTHON=python3.12 tests/tools/gpu/slot.sh                 with that Python
#
# It needs a Python with torch (built for CUDA), nmtkit's other libraries, pytest and hypothesis. Nothing is downloaded.
# On a machine without network, bring what is missing as wheels in one folder and name it: they are unpacked into a
# temporary folder and leave the machine's own Python as it is. A like machine with network collects them:
#   python3 -m pip wheel --wheel-dir wheels . pytest hypothesis    (delete those of torch and nvidia if they are there)
#   WHEELS=wheels tests/tools/gpu/slot.sh
# transformers and ctranslate2, where they are installed, are measured beside nmtkit.
#
# Each part runs under a limit of time. Its output goes to OUT/NAME.log, and every result as soon as it is known to
# OUT/results.json, so nothing is lost where a part fails or is stopped; the next one begins all the same. The table of
# all results comes last. Exit code: 0, or 1 if something does not hold; 2 without the device.
set -uo pipefail
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
esac
root=$(cd "$(dirname "$0")/../../.." && pwd)
python=$root/.venv/bin/python
[ -x "$python" ] || python=python3
python=${PYTHON:-$python}
export PYTHONUNBUFFERED=1 COLUMNS=${COLUMNS:-160} PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}

if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d) || exit 2
  trap 'rm -rf "$site"' EXIT
  if ! "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl; then
    echo "error: the wheels in $WHEELS cannot be installed; see above" >&2
    exit 2
  fi
  export PYTHONPATH=$root:$site:$PYTHONPATH
fi
if ! fault=$("$python" -c "import nmtkit.cli, torch, pytest, hypothesis" 2>&1); then
  echo "error: $python cannot begin: ${fault##*$'\n'} (see the head of $0)" >&2
  exit 2
fi
"$python" -m tests.tools.gpu "$@"
