# What .ci/run and .ci/full share. Sourced, not run.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
unset KERAS_BACKEND  # the tests choose theirs; no choice is the default, TensorFlow
export TF_CPP_MIN_LOG_LEVEL=2 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

step() {  # prints a heading with the minutes so far
    printf '\n=== %02d:%02d  %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"
}

find_python() {  # the first of the given minor versions of Python 3 that starts, on the PATH or under pyenv
    local minor candidate
    for minor in "$@"; do
        for candidate in "python3.$minor" python3 "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
            if "$candidate" -c "import sys, venv; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
                echo "$candidate"
                return
            fi
        done
    done
    return 1
}

make_venv() {  # make_venv FOLDER PYTHON: an empty environment with a supported pip
    "$2" -m venv --clear "$1"
    "$1/bin/python" -m pip install --quiet "pip>=25,<27"
}

resolve() {  # resolve PYTHON EXTRA [uv options]: prints the versions of an extra of PROJECT; installs nothing
    local python=$1 extra=$2 versions index
    shift 2
    versions=$(mktemp)
    # uv does not read pip's configuration.
    index=${PIP_INDEX_URL:-$("$python" -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || set -- --index-url "$index" "$@"
    # uv, which PYTHON has: it resolves in seconds and for other platforms
    if [ -n "${PROJECT:-}" ]; then
        echo "keras-tx[$extra] @ file://$PROJECT" | "$python" -m uv pip compile --quiet "$@" - >"$versions"
    else
        "$python" -m uv pip compile --quiet --extra "$extra" "$@" pyproject.toml >"$versions"
    fi
    "$python" .ci/resolved.py "$versions" "$extra"
    rm "$versions"
}
