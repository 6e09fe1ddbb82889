#!/usr/bin/env bash
# Time the way from a wheel to sixteen different answers: five typed lines, in an empty folder.
#   recipes/newcomer.sh [WHEEL]    PYTHON=python3.13 chooses another interpreter
# pip reads its usual settings: with PIP_NO_CACHE_DIR=1 the time includes all downloads.
set -euo pipefail

wheel=$(realpath "${1:-$(echo "$(dirname "$0")"/../dist/oddlm-*.whl)}")
python=$(command -v "${PYTHON:-python3}")
unset PYTHONPATH
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

lines=(
  "cd $folder"
  "$python -m venv .venv"
  ". .venv/bin/activate"
  "pip install $wheel"
  'oddlm sample "73,32,7,19,28" --n 16 --length 24 --steps 12 --alpha 8'
)

begin=$EPOCHREALTIME
for line in "${lines[@]}"; do
  echo "\$ $line"
  before=$EPOCHREALTIME
  if [[ $line == oddlm* ]]; then
    eval "$line" | tee samples.txt
  else
    eval "$line" >log.txt 2>&1 || { cat log.txt; exit 1; }
  fi
  echo "# $(bc <<<"scale=1; ($EPOCHREALTIME - $before) / 1") s"
done
total=$(bc <<<"scale=1; ($EPOCHREALTIME - $begin) / 1")

answers=$(grep -vc '^---' samples.txt || true)
distinct=$(grep -v '^---' samples.txt | sort -u | wc -l)
python -c 'import platform, torch, oddlm; print("# oddlm", oddlm.__version__, "torch", torch.__version__, "Python", platform.python_version())'
echo "# $answers answers, $distinct different, $total s from an empty folder"
[[ $answers == 16 && $distinct == 16 ]]
