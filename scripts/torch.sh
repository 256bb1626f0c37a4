# Installs torch into the environment of $venv_python; sourced after install.sh.

torch_cpu_index=https://download.pytorch.org/whl/cpu

torch_index_reachable() {
    "$venv_python" - "$torch_cpu_index/torch/" <<'PYTHON' >>"$log" 2>&1
import sys, urllib.request
try:
    urllib.request.urlopen(sys.argv[1], timeout=5).read(1)
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error}; trying the default index")
PYTHON
}

nvidia_device() {
    [ -e /dev/nvidia0 ] || command -v nvidia-smi >/dev/null
}

# cpu or cuda: the kind of torch's build that fits the machine.
torch_kind() {
    if [ "$(uname -s)" = Linux ] && ! nvidia_device && has_cpu_torch; then echo cpu; else echo cuda; fi
}

has_cpu_torch() {
    "$venv_python" -c 'import importlib.metadata as found; raise SystemExit("+cpu" not in found.version("torch"))' 2>>"$log"
}

# The first argument begins the lines that are shown; the second is a version (`torch==2.11.0`), by default the locked one, by its hashes. The
# default index's build on Linux includes gigabytes of CUDA libraries, which a machine without a GPU cannot use: there the build comes from
# torch's own index, from which nothing else is taken, or from a folder of wheels in pip's settings, by its exact version.
install_torch() {
    local torch=${2:-}
    [ -n "$torch" ] || torch=$(grep -m 1 -o '^torch==[^ ]*' scripts/locks/dev.txt)
    if [ "$(uname -s)" = Linux ] && ! nvidia_device; then
        progress "$1: $torch for the CPU (no NVIDIA device)"
        if torch_index_reachable && install_packages --no-deps --index-url "$torch_cpu_index" "$torch" ||
            install_packages --no-deps --no-index "$torch"; then
            progress_end
            return
        fi
    else
        progress "$1: $torch"
    fi
    if [ -n "${2:-}" ]; then
        install_packages "$torch" || install_failed "$torch"
    else
        install_locked scripts/locks/dev.txt torch || install_failed "$torch"
    fi
    progress_end
}
