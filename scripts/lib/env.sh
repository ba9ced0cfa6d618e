# shellcheck shell=bash
#
# Source this file, then:
#
#   aten_ext_make_env DIR EXTRAS
#
# makes DIR a virtual environment with torch and with this checkout installed into it (editable), and with the
# extras EXTRAS, e.g. "demo" or "test,lint"; EXTRAS may be empty. What is done already is not done again; where
# the sources of the kernels have changed they are compiled. Works from any directory; says on stderr what it
# does, one line a step.
#
# Environment:
#   PYTHON           the interpreter for a new environment (python3)
#   ATEN_EXT_TORCH   what to install where the environment has no torch, as pip takes it (torch>=2.11 with an
#                    NVIDIA driver, torch==2.13.0 without one)

ATEN_EXT_ROOT=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)

_aten_ext_say() {
    printf 'aten_ext: %s\n' "$*" >&2
}

# What this machine lacks, in one line; nothing if it has it all.
_aten_ext_missing() {
    local python=$1 compiler=${CXX:-c++}
    if ! command -v -- "$python" >/dev/null; then
        echo "found no $python; install Python 3.10 or newer, or set PYTHON"
    elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
        echo "$python is $("$python" -V 2>&1), which is older than 3.10; install a newer one, or set PYTHON"
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo "$python has no venv or ensurepip; install them (on Debian and Ubuntu: the package python3-venv)"
    elif ! "$python" -c 'import os, sys, sysconfig
sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'; then
        echo "$python has no header files; install them (on Debian and Ubuntu: the package python3-dev)"
    elif ! command -v -- "${compiler%% *}" >/dev/null; then
        echo "found no C++ compiler (${compiler%% *}); install one (on Debian and Ubuntu: the package g++), or set CXX"
    fi
}

_aten_ext_torch_requirement() {
    if [[ -n ${ATEN_EXT_TORCH:-} ]]; then
        echo "$ATEN_EXT_TORCH"
    elif nvidia-smi -L >/dev/null 2>&1; then
        echo 'torch>=2.11'
    else
        echo 'torch==2.13.0'
    fi
}

# Changes with all that the installed package depends on: its sources, torch, the build's environment, EXTRAS, and
# the compiled kernels, because environments of one checkout share them and another may have built them since.
# Not the Python files, which an editable installation reads where they are.
_aten_ext_fingerprint() {
    local python=$1 extras=$2
    {
        printf '%s\n' "$extras" "${ATEN_EXT_BUILD_CUDA-}" "${TORCH_CUDA_ARCH_LIST-}" "${CUDA_HOME-}" \
            "${CC-}" "${CXX-}" "${CFLAGS-}" "${CXXFLAGS-}"
        "$python" -c 'import importlib.metadata as m, sys; print(sys.version, m.version("torch"))'
        cd -- "$ATEN_EXT_ROOT" && {
            find aten_ext pyproject.toml setup.py scripts/{codegen,lib/override_table}.py native_functions_ext.yaml \
                -type f -print0
            find python/aten_ext -maxdepth 1 -name '*.so' -print0
        } | sort -z | xargs -0 sha256sum
    } | sha256sum
}

# A line for each file that is compiled, and what setup.py says; all of it stands in build/build.log. The
# installation after it finds everything compiled.
_aten_ext_build() {
    local log=$ATEN_EXT_ROOT/build/build.log
    mkdir -p -- "${log%/*}"
    (cd -- "$ATEN_EXT_ROOT" && exec "$1" setup.py build_ext --inplace 2>&1) |
        tee -- "$log" |
        sed -u -n -E -e '/^aten_ext: /p' \
            -e 's|^\[([0-9]+/[0-9]+)\].* -c [^ ]*/([^ /]+/[^ /]+) .*|aten_ext:   [\1] \2|p' >&2
    if [[ ${PIPESTATUS[0]} != 0 ]]; then
        grep -E ' error: |^error: |^aten_ext: ' -- "$log" | head -n 20 >&2
        _aten_ext_say "the build failed; all it said is in $log"
        return 1
    fi
}

aten_ext_make_env() {
    local directory=$1 extras=${2-} python=${PYTHON:-python3} missing torch stamp
    if [[ -x $directory/bin/python ]]; then
        python=$directory/bin/python
    fi
    missing=$(_aten_ext_missing "$python")
    if [[ -n $missing ]]; then
        _aten_ext_say "$missing"
        return 1
    fi

    # An interrupted earlier run may have left an environment without pip; venv completes it.
    if ! "$directory/bin/python" -m pip --version >/dev/null 2>&1; then
        _aten_ext_say "creating the virtual environment $directory"
        "$python" -m venv "$directory" || return
    fi
    python=$(cd -- "$directory/bin" && pwd)/python
    stamp=$directory/aten_ext.installed
    local install=("$python" -m pip install --quiet --disable-pip-version-check)

    if ! "$python" -c 'import importlib.metadata as m; m.version("torch")' 2>/dev/null; then
        torch=$(_aten_ext_torch_requirement)
        _aten_ext_say "installing $torch"
        "${install[@]}" "$torch" || return
    fi

    if [[ -f $stamp && $(_aten_ext_fingerprint "$python" "$extras") == "$(<"$stamp")" ]]; then
        return 0
    fi
    rm -f -- "$stamp"
    _aten_ext_say "installing what the build needs"
    "${install[@]}" 'setuptools>=77,<82' wheel ninja 'pybind11>=2.13' pyyaml numpy typing_extensions || return
    _aten_ext_say "building aten_ext (takes minutes)"
    _aten_ext_build "$python" || return
    # Without build isolation: the kernels fit only the torch that they were built with, and that is this one.
    _aten_ext_say "installing aten_ext${extras:+ with extras $extras}"
    "${install[@]}" --no-build-isolation --editable "$ATEN_EXT_ROOT${extras:+[$extras]}" || return
    _aten_ext_fingerprint "$python" "$extras" >"$stamp"
}
