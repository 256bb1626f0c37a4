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

# The first argument begins the lines that are shown; the second is a version (`torch==2.11.0`), by default the locked one. The default
# index's build on Linux includes gigabytes of CUDA libraries, which a machine without a GPU cannot use.
install_torch() {
    local torch=${2:-}
    [ -n "$torch" ] || torch=$(grep -m 1 '^torch==' scripts/locks/dev.txt)
    if [ "$(uname -s)" = Linux ] && ! nvidia_device; then
        progress "$1: $torch for the CPU (no NVIDIA device)"
        if torch_index_reachable && install_packages --index-url "$torch_cpu_index" "$torch"; then
            progress_end
            return
        fi
    else
        progress "$1: $torch"
    fi
    install_packages "$torch" || install_failed "$torch"
    progress_end
}
