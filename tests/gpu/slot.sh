#!/usr/bin/env bash
# What holds on this GPU, and how fast it is there: one command, about ten minutes on a large GPU.
#
#   tests/gpu/slot.sh                                   on cuda:0, with .venv of the checkout, else with python3
#   tests/gpu/slot.sh --device cuda:1 --out /tmp/slot   on another device; results go to runs/gpu-slot otherwise
#   tests/gpu/slot.sh --only resume,decoding            some parts only; their names are below
#   tests/gpu/slot.sh --run runs/mine                   a trained run too, beside other engines with its weights
#   tests/gpu/slot.sh --device cpu --quick              the same path on a CPU, in some minutes, to try it out
#   PYTHON=python3.12 tests/gpu/slot.sh                 with that Python
#
# It needs a Python with torch (built for CUDA), nmtkit's other libraries, pytest and hypothesis. Nothing is downloaded.
# On a machine without network, bring what is missing as wheels in one folder and name it: they are unpacked beside the
# results and leave the machine's own Python as it is. A like machine with network collects them in the checkout:
#   python3 -m pip wheel --wheel-dir wheels . pytest hypothesis    (delete those of torch and nvidia if they are there)
#   WHEELS=wheels tests/gpu/slot.sh
# transformers and ctranslate2, where they are installed, are measured beside nmtkit.
#
# Each part runs under a limit of time. Its output goes to OUT/NAME.log, and every result as soon as it is known to
# OUT/results.json, so nothing is lost where a part fails or is stopped; the next one begins all the same. The table of
# all results comes last. Exit code: 0, or 1 if something does not hold; 2 without the device.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
device=cuda:0 out=$root/runs/gpu-slot quick=() only= run=()
while [ $# -gt 0 ]; do
  case $1 in
    --device) device=${2:?--device needs a name}; shift 2 ;;
    --out) out=${2:?--out needs a folder}; shift 2 ;;
    --only) only=,${2:?--only needs names},; shift 2 ;;
    --run) run=(--run "$(realpath "${2:?--run needs a folder}")"); shift 2 ;;
    --quick) quick=(--quick); shift ;;
    -h | --help) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "$0"; exit 0 ;;
    *) echo "error: unknown argument $1; see $0 --help" >&2; exit 2 ;;
  esac
done
names=$(sed -n 's/^\(part\|script\|tests\) \([a-z-]*\) [0-9].*/\2/p' "$root/tests/gpu/slot.sh" | tr '\n' ' ')
for name in ${only//,/ }; do
  [[ " $names" == *" $name "* ]] || { echo "error: --only: there is no part $name; there are: $names" >&2; exit 2; }
done
python=${PYTHON:-}
if [ -z "$python" ]; then
  python=python3
  [ -x "$root/.venv/bin/python" ] && python=$root/.venv/bin/python
fi
mkdir -p "$out" || exit 2
out=$(cd "$out" && pwd)
results=$out/results.json
if [ ! -e "$results" ] && [ -n "$(ls -A "$out")" ]; then
  echo "error: $out holds other things than an earlier slot; name another folder with --out" >&2
  exit 2
fi
rm -rf "$out"/*.log "$out"/*.xml "$out"/captions "$out"/scratch-* "$out"/site
echo '{}' > "$results"
export PYTHONUNBUFFERED=1 COLUMNS=${COLUMNS:-160}
earlier=${PYTHONPATH:+:$PYTHONPATH}
export PYTHONPATH=$root$earlier

if [ -n "${WHEELS:-}" ]; then
  if ! "$python" -m pip install --quiet --no-index --no-deps --no-compile --target "$out/site" "$WHEELS"/*.whl; then
    echo "error: the wheels in $WHEELS cannot be installed; see above" >&2
    exit 2
  fi
  export PYTHONPATH=$root:$out/site$earlier
fi
cd "$root" || exit 2
if ! fault=$("$python" -c "import nmtkit.cli, torch, pytest, hypothesis" 2>&1); then
  echo "error: $python cannot begin: ${fault##*$'\n'} (see the head of $0)" >&2
  exit 2
fi
"$python" -m tests.gpu.results begin "$results" "$device" || exit 2

part() { # part NAME SECONDS COMMAND...
  local name=$1 limit=$2 begun=$SECONDS code
  shift 2
  if [ -n "$only" ] && [[ $only != *",$name,"* ]]; then return; fi
  if [ ${#quick[@]} -gt 0 ]; then limit=$((3 * limit)); fi # a CPU may be slow
  echo "--- $name, at most $limit seconds"
  timeout --signal=INT --kill-after=20 "$limit" "$@" > "$out/$name.log" 2>&1
  code=$?
  if [ -e "$out/$name.xml" ]; then "$python" -m tests.gpu.results pytest "$results" "$name" "$out/$name.xml"; fi
  "$python" -m tests.gpu.results ended "$results" "$name" "$code" $((SECONDS - begun)) "$out/$name.log"
  grep -E "^$name, .*: (holds|DOES NOT HOLD|measured): " "$out/$name.log"
}
script() { # script NAME SECONDS MODULE ARGUMENT...: a part that is a file of this folder
  local name=$1 limit=$2 module=$3
  shift 3
  part "$name" "$limit" "$python" -m "tests.gpu.$module" \
    --device "$device" --results "$results" --part "$name" ${quick[@]+"${quick[@]}"} "$@"
}
tests() { # tests NAME SECONDS ARGUMENT...: a part that is a run of pytest
  local name=$1 limit=$2
  shift 2
  part "$name" "$limit" "$python" -m pytest -m cuda -p no:cacheprovider --junitxml="$out/$name.xml" "$@"
}

part doctor 60 "$python" -m nmtkit doctor
script ceilings 60 ceilings
script programs 60 programs
tests contracts 150 tests/contracts
tests cuda-tests 120 tests --ignore=tests/contracts
script resume 90 resume
script resume-deterministic 90 resume --deterministic
script processes 60 processes
script decoding 300 decoding
script peers 180 peers ${run[@]+"${run[@]}"}
script training 150 training
script demo 240 demo
script kernels 90 kernels

echo
"$python" -m tests.gpu.results table "$results"
