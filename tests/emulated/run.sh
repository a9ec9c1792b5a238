#!/usr/bin/env bash
# Runs the ARM64 wheel under QEMU's emulator, without a compiler: `make arm64`, on Debian for x86-64 and as root.
#
# A folder gets Debian's Python for ARM64, and PyTorch and the other dependencies from their ARM64 wheels. PyTorch 2.8 is
# the last one whose ARM64 wheel does without CUDA. Arguments: the wheel, and an empty or earlier folder.
set -euo pipefail
wheel=$(realpath "$1") folder=$(realpath -m "$2") here=$(dirname "$(realpath "${BASH_SOURCE[0]}")")
python=${PYTHON:-python3}
mkdir -p "$folder/debs" "$folder/root"
cd "$folder"

if [ ! -x root/usr/bin/python3.11 ]; then
    dpkg --add-architecture arm64
    apt-get update -qq
    packages="libc6 libgcc-s1 libstdc++6 libpython3.11-minimal libpython3.11-stdlib python3.11-minimal python3.11
        zlib1g libexpat1 libssl3 libffi8 libbz2-1.0 liblzma5 libsqlite3-0 libuuid1 libtinfo6 libncursesw6"
    (cd debs && apt-get download -qq $(printf '%s:arm64 ' $packages))
    for deb in debs/*.deb; do dpkg -x "$deb" root; done
fi
install=("$python" -m pip --disable-pip-version-check install --quiet --upgrade --only-binary=:all:
    --platform manylinux_2_28_aarch64 --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64
    --python-version 3.11 --implementation cp --target site)
if [ ! -d site/torch ]; then
    "${install[@]}" --no-deps torch==2.8.0
    "${install[@]}" numpy safetensors tokenizers huggingface_hub jinja2 typer rich sympy networkx filelock fsspec typing_extensions
fi
rm -rf wheel
"$python" -m zipfile -e "$wheel" wheel

emulator=$(command -v qemu-aarch64)
for features in "" asimddp; do
    env -i PATH=/nonexistent HOME="$folder" QEMU_LD_PREFIX="$folder/root" PYTHONPATH="$folder/wheel:$folder/site" \
        DAGUERRE_CACHE=off HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 \
        "$emulator" root/usr/bin/python3.11 "$here/check.py" $features
done
