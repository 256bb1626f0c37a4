"""The process inside the sandbox: restricts itself, reports that, and runs the answer's program.

Started by `programs.py`.
With tests, it forks before the program is read: the tests run here (`judge.py`), the program in the child
(`program_server.py`), which has neither the tests nor the proof, and the two exchange values over two pipes
(`plain_values.py`).

It imports only the standard library and these files, because it is started by its path in an interpreter without other
packages, and little of that, because every test of every answer starts it.

Restrictions, each if the system supports it:

    limits      CPU time, memory, file size, open files, no core dump
    death       it dies with the process that started it, and cannot change that (Linux)
    Landlock    it reads the standard library and system libraries, and writes in its own folder; no other file opens
                (Linux 5.13 and later; Landlock: https://docs.kernel.org/userspace-api/landlock.html);
                no signal leaves it, however it is sent (Linux 6.12 and later)
    seccomp     the system calls of `system_calls.py` and no others: no process, no program, no socket, no signal to
                others, none by the ownership of files, no mount, trace, change of owner or mode
                (Linux on x86-64 and ARM64; https://docs.kernel.org/userspace-api/seccomp_filter.html)
    no powers   a superuser's capabilities are dropped

Without seccomp, a limit on the number of processes replaces it; a superuser, to whom that limit does not apply, is
refused.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import resource
import struct
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as the interpreter takes to start
    from typing import Any

READY = b"+"
"""Written to the status pipe once the sandbox is active; the proof that every check passed follows."""
REFUSED = b"-"
"""Written instead on failure; the reason follows."""

SET_DEATH_SIGNAL, SET_DUMPABLE, SET_SECCOMP, SET_NO_NEW_PRIVILEGES = 1, 4, 22, 38
FILTER_MODE = 2
KILL_SIGNAL = 9
NEW_USER_AND_NETWORK = 0x50000000
CAPABILITY_VERSION_3 = 0x20080522

LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
LANDLOCK_VERSION, LANDLOCK_BENEATH = 1, 1
SCOPES_FROM, SCOPE_OF_SOCKETS_AND_SIGNALS = 6, 3
"""First version with scopes; abstract Unix sockets and signals."""
READ = 1 << 2 | 1 << 3
"""Files and folders."""
FOLDER_RIGHTS = 1 << 3 | 1 << 4 | 1 << 5 | 0x7F << 6 | 1 << 13
"""Rights that apply only to folders: listing, and creating and removing entries."""
RIGHTS_BY_VERSION = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF, 5: 0xFFFF}
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/share/zoneinfo", "/dev/urandom", "/dev/zero")

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE, CLONE3, KILL, TGKILL = (56, 220), (435, 435), (62, 129), (234, 131)
AS_THREAD = 0x10000
"""Flag CLONE_THREAD."""

LOAD, JUMP_EQUAL, JUMP_BITS, JUMP_FROM, RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
NUMBER, ARCHITECTURE, FIRST_ARGUMENT, SECOND_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 24, 32
ALLOW, FAIL, END = 0x7FFF0000, 0x00050000, 0x80000000
FOREIGN_NUMBERS = 0x40000000
"""First system call number of the x32 ABI."""


def main(job_descriptor: int, tests_descriptor: int, status: int) -> None:
    """Read the job, enter the sandbox, and run the program; with tests, those too, and write the proof if they pass."""
    job = read_marshalled(job_descriptor)
    calls, *parts = load_parts(
        "system_calls", *(("plain_values", "program_server", "judge") if job["has_tests"] else ())
    )
    try:
        restrict_process(job)
        if not job["has_tests"]:
            os.close(tests_descriptor)
            close_doors((os.getpid(),), calls)
    except OSError as error:
        refuse(status, error)
    if job["has_tests"]:
        run_with_tests(job, (calls, *parts), tests_descriptor, status)
    os.write(status, READY)
    module = types.ModuleType("__main__")
    sys.modules[module.__name__] = module
    exec(compile(job["program"], "answer.py", "exec"), module.__dict__)  # noqa: S102 - this is what the sandbox is for


def read_marshalled(descriptor: int) -> Any:
    """Text that the process that started this one has written."""
    with os.fdopen(descriptor, "rb") as file:
        return marshal.load(file)  # noqa: S302 - from the process that started this one


def refuse(status: int, error: OSError) -> None:
    """Report that there is no sandbox here, and end."""
    os.write(status, REFUSED + str(error).encode())
    os._exit(1)


def load_parts(*names: str) -> list[Any]:
    """Modules of this folder, without the package around them, which needs more than the standard library."""
    folder = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - it starts sooner without pathlib
    for name, place in (("areal_actors", os.path.dirname(folder)), ("areal_actors.sandbox", folder)):  # noqa: PTH120
        package = sys.modules[name] = types.ModuleType(name)
        package.__path__ = [place]
    return [__import__(f"areal_actors.sandbox.{name}", fromlist=[name]) for name in names]


def run_with_tests(job: dict[str, Any], parts: tuple[Any, ...], tests_descriptor: int, status: int) -> None:
    """Run the program in a process of its own, which has neither the tests nor the proof, and its tests in this one."""
    calls, values, program_server, judge = parts
    requests, answers, started = os.pipe(), os.pipe(), os.pipe()
    own = os.getpid()
    if not (program := os.fork()):
        for descriptor in (tests_descriptor, status, requests[1], answers[0], started[0]):
            os.close(descriptor)
        serve_program(
            job, calls, own, started[1], values.Channel(requests[0], answers[1]), program_server.ProgramServer
        )
    for descriptor in (requests[0], answers[1], started[1]):
        os.close(descriptor)
    try:
        if refused := os.read(started[0], 1000):
            raise OSError(refused.decode(errors="replace"))
        close_doors((own, program), calls, is_hidden=True)
    except OSError as error:
        refuse(status, error)
    os.write(status, READY)
    channel = values.Channel(answers[0], requests[1])
    tests = read_marshalled(tests_descriptor)
    failed = 1
    try:
        if channel.receive() == "started" and judge.run_checks(channel, tests["checks"]):
            os.write(status, tests["proof"].encode())
            failed = 0
    finally:
        os.kill(program, KILL_SIGNAL)
        os.waitpid(program, 0)
        if not failed:
            os._exit(0)


def serve_program(job: dict[str, Any], calls: Any, judge: int, started: int, channel: Any, server: Any) -> None:
    """Run the program, and answer its tests; never returns."""
    try:
        die_with_parent(ctypes.CDLL(None, use_errno=True), judge)
        restrict_signals(ctypes.CDLL(None, use_errno=True))
        close_doors((os.getpid(),), calls)
    except OSError as error:
        os.write(started, str(error).encode() or b"-")
        os._exit(1)
    os.close(started)
    module = types.ModuleType("answer")
    sys.modules["answer"] = module
    try:
        # This is what the sandbox is for
        exec(compile(job["program"], "answer.py", "exec"), module.__dict__)  # noqa: S102
        channel.send("started")
        server(channel, module.__dict__).serve()
    except BaseException:  # noqa: BLE001 - what it raises is shown, as in any program
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def restrict_process(job: dict[str, Any]) -> None:
    """Set limits, give up powers, and restrict files: what the program and its tests have in common.

    Raises:
        OSError: a limit cannot be set, or Landlock does not take effect.
    """
    os.umask(0o077)
    limits = [
        (resource.RLIMIT_CPU, int(job["seconds"]) + 1),
        (resource.RLIMIT_AS, job["memory_bytes"]),
        (resource.RLIMIT_FSIZE, job["file_bytes"]),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ]
    for limit, most in limits:
        resource.setrlimit(limit, (most, most))
    if sys.platform == "linux":
        system = ctypes.CDLL(None, use_errno=True)
        die_with_parent(system, job["parent"])
        drop_capabilities(system)
        system.prctl(SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        restrict_files(system, job["folder"])
        restrict_signals(system)


def close_doors(signalled: tuple[int, ...], calls: Any, *, is_hidden: bool = False) -> None:
    """Deny system calls until the end of the process; signals reach the given processes only.

    `is_hidden` denies other processes the memory of this one.

    Raises:
        OSError: this user's program could start other processes.
    """
    system = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "linux":
        if is_hidden:
            system.prctl(SET_DUMPABLE, 0, 0, 0, 0)
        if install_seccomp(system, signalled, calls):
            return
        system.unshare(NEW_USER_AND_NETWORK)
    if os.geteuid() == 0:
        raise OSError("no seccomp here, and a superuser's processes cannot be limited; run as another user")
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def die_with_parent(system: ctypes.CDLL, parent: int) -> None:
    """Die when the parent dies; immediately if it is dead already."""
    system.prctl(SET_DEATH_SIGNAL, KILL_SIGNAL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def drop_capabilities(system: ctypes.CDLL) -> None:
    """Drop all capabilities, so that root has only the rights of a file owner."""
    header = ctypes.create_string_buffer(struct.pack("Ii", CAPABILITY_VERSION_3, 0))
    system.capset(header, ctypes.create_string_buffer(24))


def restrict_files(system: ctypes.CDLL, folder: str) -> None:
    """Allow reading the libraries and writing one folder; does nothing without Landlock."""
    version = system.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION)
    if version < 1:
        return
    rights = RIGHTS_BY_VERSION[min(version, max(RIGHTS_BY_VERSION))]
    handled = ctypes.create_string_buffer(struct.pack("Q", rights), 8)
    rules = system.syscall(LANDLOCK_CREATE, handled, ctypes.c_size_t(8), 0)
    for path in (
        *LIBRARIES,
        os.path.dirname(os.__file__),  # noqa: PTH120
        f"{sys.base_prefix}/lib",
    ):
        _allow(system, rules, path, READ)
    _allow(system, rules, "/dev/null", READ | 1 << 1 | rights & 1 << 14)
    _allow(system, rules, folder, rights)
    failed = system.syscall(LANDLOCK_RESTRICT, rules, 0)
    os.close(rules)
    if failed:
        raise OSError(f"Landlock does not take effect: {os.strerror(ctypes.get_errno())}")


def restrict_signals(system: ctypes.CDLL) -> None:
    """Let no signal leave this process, however it is sent; does nothing without Landlock's scopes."""
    if system.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), LANDLOCK_VERSION) < SCOPES_FROM:
        return
    handled = ctypes.create_string_buffer(struct.pack("QQQ", 0, 0, SCOPE_OF_SOCKETS_AND_SIGNALS), 24)
    rules = system.syscall(LANDLOCK_CREATE, handled, ctypes.c_size_t(24), 0)
    failed = rules < 0 or system.syscall(LANDLOCK_RESTRICT, rules, 0)
    if failed:
        raise OSError(f"Landlock does not restrict signals: {os.strerror(ctypes.get_errno())}")
    os.close(rules)


def _allow(system: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    if not os.path.isdir(path):  # noqa: PTH112
        rights &= ~FOLDER_RIGHTS
    rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place), 12)
    failed = system.syscall(LANDLOCK_ADD, rules, LANDLOCK_BENEATH, rule, 0)
    os.close(place)
    if failed:
        raise OSError(f"Landlock does not take {path}: {os.strerror(ctypes.get_errno())}")


def install_seccomp(system: ctypes.CDLL, signalled: tuple[int, ...], calls: Any) -> bool:
    """Install the system call filter, which cannot be removed; False if this machine does not support it."""
    machine = os.uname().machine
    if machine not in ARCHITECTURES:
        return False
    code = seccomp_filter(machine, signalled, calls)
    program = b"".join(struct.pack("HBBI", *instruction) for instruction in code)
    buffer = ctypes.create_string_buffer(program, len(program))
    pointer = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(buffer)), 16)
    return bool(system.prctl(SET_SECCOMP, FILTER_MODE, pointer, 0, 0) == 0)


def seccomp_filter(machine: str, signalled: tuple[int, ...], calls: Any) -> list[tuple[int, int, int, int]]:
    """The filter as classic BPF: (code, jump if true, jump if false, operand) per instruction.

    `calls` is the module `system_calls`.
    """
    which = 0 if machine == "x86_64" else 1
    allowed = (RETURN, 0, 0, ALLOW)
    denied, missing = (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)
    code = [
        (LOAD, 0, 0, ARCHITECTURE),
        (JUMP_EQUAL, 1, 0, ARCHITECTURES[machine]),
        (RETURN, 0, 0, END),
        (LOAD, 0, 0, NUMBER),
    ]
    code += [(JUMP_FROM, 0, 1, FOREIGN_NUMBERS), denied]
    for numbers in calls.ALLOWED.values():
        if numbers[which] >= 0:
            code += [(JUMP_EQUAL, 0, 1, numbers[which]), allowed]
    # clone3 has its flags in memory, which BPF cannot read; the C library falls back to clone
    code += [(JUMP_EQUAL, 0, 1, CLONE3[which]), missing]
    by_argument = [(FIRST_ARGUMENT, numbers, values) for numbers, values in calls.BY_FIRST_ARGUMENT.values()]
    by_argument += [(FIRST_ARGUMENT, KILL, signalled), (FIRST_ARGUMENT, TGKILL, signalled)]
    by_argument += [(SECOND_ARGUMENT, numbers, values) for numbers, values in calls.BY_SECOND_ARGUMENT.values()]
    code += [
        (JUMP_EQUAL, 0, 4, CLONE[which]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (JUMP_BITS, 0, 1, AS_THREAD),
        allowed,
        denied,
    ]
    fcntl = calls.BY_SECOND_ARGUMENT["fcntl"][0][which]
    code += [(JUMP_EQUAL, 0, 6, fcntl), (LOAD, 0, 0, SECOND_ARGUMENT), (JUMP_EQUAL, 0, 3, calls.SET_FLAGS)]
    code += [(LOAD, 0, 0, THIRD_ARGUMENT), (JUMP_BITS, 0, 1, calls.ASYNCHRONOUS), denied, (LOAD, 0, 0, NUMBER)]
    for place, numbers, values in by_argument:
        code += [(JUMP_EQUAL, 0, 2 + 2 * len(values), numbers[which]), (LOAD, 0, 0, place)]
        for value in values:
            code += [(JUMP_EQUAL, 0, 1, value), allowed]
        code.append(denied)
    return [*code, denied]


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
