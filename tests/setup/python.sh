#!/usr/bin/env bash
# Makes a Python environment in FOLDER for the tests that compare with Gymnasium, TensorBoard and PyTorch, and
# prints its interpreter. Torch is the one whose libraries the trainer is built with: $LIBTORCH, or what `make
# libtorch` has made. Usage: python.sh FOLDER [REQUIREMENTS]
# REQUIREMENTS is a file with the packages to install instead, all of them, without what they ask for.
set -euo pipefail

requirements=${2:+$(realpath "$2")}

mkdir -p "$1"
folder=$(cd "$1" && pwd)
torch=${LIBTORCH:-$(realpath -m "$(dirname "$0")/../../.libtorch/torch")}
packages=(numpy==2.4.6 gymnasium==1.4.0 ale-py==0.12.1 tensorboard==2.21.0)
# What `import torch` needs besides torch itself.
packages+=(typing_extensions sympy networkx jinja2 fsspec filelock)
# Trainers of others, without the torch that they ask for.
trainers=(stable_baselines3==2.9.2 pytorch_lightning==2.6.6 torchmetrics lightning-utilities)
packages+=(pandas matplotlib tqdm PyYAML packaging)
# What `rankdeck export --format onnx` is compared with.
packages+=(onnx==1.23.2 onnxruntime==1.32.0)

# The modules of a torch are built for one version of Python.
python=${PYTHON:-python3}
for module in "$torch"/_C.cpython-3*.so; do
    version=${module##*/_C.cpython-3} version=3.${version%%-*}
    "$python" -c "import sys; sys.exit(sys.version_info[:2] != (3, ${version#3.}))" ||
        ! command -v "python$version" >/dev/null 2>&1 || python=python$version
done

# Where PYTHONDONTWRITEBYTECODE is set, each `import torch` would compile two thousand files again.
compiled=("$torch"/__pycache__/__init__.cpython-3*.pyc)
if [ -f "$torch/__init__.py" ] && [ ! -f "${compiled[0]}" ]; then
    "$python" -m compileall -q -j 0 "$torch" >&2 || true
fi

stamp="$("$python" -V) $torch $(cat "$0" ${requirements:+"$requirements"} | cksum)"
if [ "$(cat "$folder/stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "$folder/python"
    exit
fi
rm -rf "${folder:?}"/*
echo "python: making $folder" >&2
"$python" -m venv "$folder/venv"
pip=("$folder/venv/bin/python3" -m pip install --quiet --disable-pip-version-check --retries 5)
if [ -z "$requirements" ]; then
    "${pip[@]}" "${packages[@]}" >&2
    "${pip[@]}" --no-deps "${trainers[@]}" >&2
else
    # The last of setuptools that builds gym 0.25.
    "${pip[@]}" setuptools==66.1.1 wheel >&2
    "${pip[@]}" --no-deps --no-build-isolation -r "$requirements" >&2
fi

launcher=("#!/bin/sh")
if [ -f "$torch/__init__.py" ]; then
    site=$("$folder/venv/bin/python3" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    dirname "$torch" >"$site/torch.pth"
    # A torch for GPUs names libraries of CUDA that are several gigabytes and are never called without a GPU.
    # Where they are absent, empty ones let it be loaded; functions are then looked up when they are called,
    # not before.
    absent=$({ ldd "$torch/lib/libtorch_python.so" || true; } 2>/dev/null | awk '/not found/ { print $1 }' | sort -u)
    if [ -n "$absent" ]; then
        mkdir "$folder/absent"
        for library in $absent; do
            cc -shared -x c /dev/null -Wl,-soname,"$library" -o "$folder/absent/$library"
        done
        launcher+=("export LD_LIBRARY_PATH='$folder/absent' TORCH_USE_RTLD_GLOBAL=1")
    fi
fi
launcher+=("exec '$folder/venv/bin/python3' \"\$@\"")
printf '%s\n' "${launcher[@]}" >"$folder/python"
chmod 755 "$folder/python"
printf '%s\n' "$stamp" >"$folder/stamp"
echo "$folder/python"
