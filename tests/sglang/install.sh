#!/usr/bin/env bash
# Stock SGLang for these tests on a machine with no GPU: 1.5 GB in 2 to 3 minutes, against 9.5 GB in full.
#
#   tests/sglang/install.sh VENV [VERSION...]          VERSION: 0.5.16 to 0.5.23; without one, 0.5.23
#   VENV/bin/python -m pytest tests/sglang                                        with 0.5.23
#   VENV/bin/python-sglang-0.5.20 -m pytest tests/sglang/test_harness.py          with 0.5.20
#
# VENV is made where it is missing and always holds torch, SGLang 0.5.23 and its light dependencies; what only
# a GPU needs is left out, and `cpu_platform` stands in for triton and torchvision. An older SGLang (60 to
# 100 MB) and the transformers it wants (60 MB, once) go to VENV/versions, which its launcher puts first on
# the path, for child processes too. A second call does nothing until the recipe here changes.
#
# torch should be a CPU wheel: where pip finds none by itself, point PIP_EXTRA_INDEX_URL at PyTorch's.
# Later `pip install`s of something that depends on torch must name torch==2.13.0 beside it.
set -euo pipefail

if [ $# = 0 ]; then
  sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"
  exit 2
fi
here=$(cd "$(dirname "$0")" && pwd)
venv=$1
shift
[ $# -gt 0 ] || set -- 0.5.23

newest=0.5.23
torch=torch==2.13.0
# what SGLang imports on this path; the pins are its own
light=(
  transformers==5.19.0 tokenizers==0.23.2 apache-tvm-ffi==0.1.11 openai==2.8.0 sentencepiece==0.2.1
  PyYAML aiohttp dill einops fastapi ipython jsonschema loguru msgspec numpy orjson packaging partial_json_parser
  pillow prometheus-client psutil pybase64 pydantic python-multipart pyzmq requests safetensors setproctitle
  rich soundfile tqdm typer uvicorn uvloop
  pytest pytest-xdist hypothesis
)
bare=("sglang==$newest" compressed-tensors==0.18.0 gguf==0.19.0 xgrammar==0.2.7) # without what they ask for

pip() { "$venv/bin/python" -m pip -qq --disable-pip-version-check "$@"; }

recipe=$(cd "$here" && find install.sh cpu_platform -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum)
stamp=$venv/.topas-tests
if [ "$(cat "$stamp" 2>/dev/null)" != "$recipe" ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  pip install --no-warn-conflicts "$torch" "${light[@]}"
  pip install --no-deps "${bare[@]}"
  pip install --no-deps --force-reinstall "$here/cpu_platform"
  printf '%s' "$recipe" >"$stamp"
fi

versions=$(cd "$venv" && pwd)/versions
once() { # FOLDER PACKAGE...: the packages alone, in a folder of their own
  local folder=$1
  shift
  [ ! -e "$folder/.done" ] || return 0
  rm -rf "${folder:?}"
  pip install --no-deps --target "$folder" "$@"
  touch "$folder/.done"
}
for version in "$@"; do
  [ "$version" != "$newest" ] || continue
  case $version in
    0.5.1[6-9] | 0.5.20 | 0.5.21) transformers=5.12.1 tokenizers=0.22.2 ;;
    0.5.22) transformers=5.19.0 tokenizers=0.23.2 ;;
    *)
      echo "install.sh: SGLang $version is outside 0.5.16 to $newest" >&2
      exit 2
      ;;
  esac
  libraries=$versions/transformers-$transformers
  once "$versions/$version" "sglang==$version"
  once "$libraries" "transformers==$transformers" "tokenizers==$tokenizers"
  launcher=$venv/bin/python-sglang-$version
  cat >"$launcher" <<EOF
#!/bin/sh
PYTHONPATH="$versions/$version:$libraries\${PYTHONPATH:+:\$PYTHONPATH}" exec "$versions/../bin/python" "\$@"
EOF
  chmod +x "$launcher"
done
