# Installs torch into the environment of $venv_python; sourced, and needs pip_install and pip_failed.

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

# The default index's build on Linux includes gigabytes of CUDA libraries, which a machine without a GPU cannot use.
install_torch() {
    local torch
    torch=$("$venv_python" -c 'import tomllib; wanted = tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"]
print(next(name for name in wanted if name.startswith("torch==")))')
    if [ "$(uname -s)" = Linux ] && ! nvidia_device; then
        echo "set-up: $torch for the CPU (no NVIDIA device) ..."
        if torch_index_reachable && pip_install --index-url "$torch_cpu_index" "$torch"; then
            return
        fi
    else
        echo "set-up: $torch ..."
    fi
    pip_install "$torch" || pip_failed "$torch"
}
