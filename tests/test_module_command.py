"""Processes of this package: what is in the current folder changes none of their modules, and garbage is collected once
they run."""

from __future__ import annotations

import os
import subprocess

from areal_actors.core.module_command import module_command

PROGRAM = """
import gc, json, queue, sys
imported_with_gc = gc.isenabled()
def main(arguments):
    collects = [imported_with_gc, gc.isenabled()]
    print(json.dumps({"arguments": arguments, "gc": collects, "queue": queue.__file__ != "queue.py"}))
    return 3
"""


def test_a_module_runs_with_its_arguments_whatever_files_the_current_folder_has(tmp_path):
    modules, here = tmp_path / "modules", tmp_path / "here"
    modules.mkdir()
    here.mkdir()
    (modules / "program.py").write_text(PROGRAM)
    for name in ("queue", "nt", "asyncio", "msgspec"):
        (here / f"{name}.py").write_text("raise SystemExit(f'{__file__} was loaded')")
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    command = module_command("program", "a b", "")
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr
    assert done.stdout == '{"arguments": ["a b", ""], "gc": [false, true], "queue": true}\n'


def test_every_process_finds_the_package_from_any_folder(tmp_path):
    command = module_command("areal_actors.generation.servers.process_guard", "true")
    with subprocess.Popen([command[0], "-S", *command[1:]], cwd=tmp_path, stdin=subprocess.PIPE) as process:
        assert process.wait(300) == 0
