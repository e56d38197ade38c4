#!/bin/sh
# pack.sh PROGRAMS OUT: what travels to a machine that has a GPU, Python 3.12 with torch 2.11.0, and nothing
# else (no network, no compiler). PROGRAMS holds rankdeck and rankdeck-trainer. At most 60 MiB, or MOST.
# VERSION names another Python to bring the wheels for.
set -eu
programs=$1 out=$2 here=$(cd "$(dirname "$0")" && pwd)
rm -rf "$out"
mkdir -p "$out/wheels"
if [ "${PROGRAMS:-yes}" = yes ]; then
    tar cf - -C "$programs" rankdeck rankdeck-trainer | xz -T0 "${LEVEL:--6}" > "$out/programs.tar.xz"
fi
cp "$here"/*.py "$out/"
${CC:-cc} -O2 -fPIC -shared -w "$here/cudacount.c" -o "$out/cudacount.so" -ldl -Wl,--version-script="$here/cudacount.map"
if [ "${WHEELS:-yes}" = yes ]; then
    version=${VERSION:-3.12}
    ${PYTHON:-python3} -m pip download -q --no-deps --only-binary=:all: --python-version "$version" --implementation cp \
        --abi "cp$(echo "$version" | tr -d .)" \
        --abi none --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform any -d "$out/wheels" \
        ale-py==0.12.1 gymnasium==1.4.0 cloudpickle farama-notifications
fi
size=$(du -sm "$out" | cut -f1)
most=${MOST:-60}
if [ "$size" -gt "$most" ]; then
    echo "gpu-kit: $size MiB is more than $most:" >&2
    (cd "$out" && du -m -- * | sort -rn | sed 's/^/gpu-kit:   /') >&2
    exit 1
fi
echo "gpu-kit: $out, $size MiB; on the machine: python3 drive.py --out DIR --budget 560"
