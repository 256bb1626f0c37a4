"""Loads an agent by its name, checks its signature, and returns the function to call."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import sys
import traceback
import zlib
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from .faults import AgentLoadError, format_error

SIGNATURE = "`async def run(self, task, *, base_url, api_key)`"
ADDRESS = {"base_url": "", "api_key": ""}
IN_ENVIRONMENT = 'without these it would read OPENAI_BASE_URL, which only `runner = "subprocess"` sets for each episode'

Agent = Callable[..., Any]
"""Takes the task, `base_url` and `api_key`; returns a result, or an awaitable of one."""


# ---------------------------------------------------------------- loading


def load(spec: str, root: Path) -> Any:
    """Load `path.py:Name`, `package.module:Name` or `package.module.Name`; paths and modules are relative to `root`.

    Raises:
        AgentLoadError: the name has none of these forms, its module is missing or raises, or has no such name.
    """
    place, colon, name = spec.rpartition(":")
    if not colon:
        place, _, name = spec.rpartition(".")
    if (
        not name.isidentifier()
        or spec.endswith(".py")
        or not (place.endswith(".py") or all(part.isidentifier() for part in place.split(".")))
    ):
        raise AgentLoadError(
            f"`{spec}` must have the form `path.py:Name`, such as `agents/gsm8k.py:Gsm8kAgent`, or"
            " `package.module:Name`"
        )
    module = (
        _run_file(spec, (root / place).resolve(), root) if place.endswith(".py") else _import_module(spec, place, root)
    )
    if hasattr(module, name):
        return getattr(module, name)
    defined = [other for other in vars(module) if not other.startswith("_")]
    near = get_close_matches(name, defined, n=1, cutoff=0.5)
    remedy = f"did you mean `{near[0]}`?" if near else f"it defines: {', '.join(defined) or 'nothing'}"
    raise AgentLoadError(f"`{spec}`: {module.__file__} has no `{name}`; {remedy}")


def _run_file(spec: str, path: Path, root: Path) -> ModuleType:
    """Load the file under a unique module name, so that it never shadows an installed package such as `agents`.

    Files beside it can be imported; its folder is last on the path for the same reason.
    """
    if not path.is_file():
        raise AgentLoadError(f"`{spec}`: there is no file {path}; paths are relative to {root.resolve()}")
    if (folder := str(path.parent)) not in sys.path:
        sys.path.append(folder)
    module_name = f"loaded_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    module_spec = importlib.util.spec_from_file_location(module_name, path)
    if module_spec is None or module_spec.loader is None:
        raise AgentLoadError(f"`{spec}`: {path} cannot be loaded as Python code")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_name] = module  # dataclasses and pickle look their module up there
    try:
        module_spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as pytest's Skipped
        del sys.modules[module_name]
        raise AgentLoadError(f"`{spec}`: {path}:{_line(error, path)} raised {type(error).__name__}: {error}") from error
    return module


def _import_module(spec: str, module_name: str, root: Path) -> ModuleType:
    """Import a module; the root is last on the path, so that nothing in it shadows an installed package."""
    if (root_path := str(root.resolve())) not in sys.path:
        sys.path.append(root_path)
    try:
        return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # such as pytest's Skipped
        missing = (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{module_name}.".startswith(f"{error.name}.")
        )
        if missing:
            raise AgentLoadError(
                f"`{spec}`: {sys.executable} finds no module `{module_name}`, neither installed nor in {root_path}"
            ) from error
        raise AgentLoadError(f"`{spec}`: importing {module_name} raised {format_error(error)}") from error


def _line(error: BaseException, path: Path) -> int:
    """The line of the file that raised an error."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return error.lineno or 0
    lines = [frame.lineno or 0 for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return lines[-1] if lines else 0


# ---------------------------------------------------------------- kinds of agents


def make_agent(factory: Any, name: str, options: Mapping[str, Any], *, environment: bool = False) -> Any:
    """An instance if `found` is a class, else `found` itself; options become its keyword arguments.

    With `environment` a function may take the task alone, and read the address from the environment.

    Raises:
        AgentLoadError: the options do not fit, the class raises, or an object is given options.
    """
    if inspect.isclass(factory):
        _check_call(factory, f"agent {name}", "", options)
        try:
            return factory(**options)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # such as pytest's Skipped
            raise AgentLoadError(f"agent {name}: making one raised {format_error(error)}") from error
    if inspect.isroutine(factory):
        _check_run(factory, f"agent {name}", options, environment=environment)
        return functools.partial(factory, **options) if options else factory
    if options:
        raise AgentLoadError(
            f"agent {name} is an instance and takes no options; name its class, or drop task.agent_options"
        )
    return factory


def run_function(agent: Any, name: str, *, environment: bool = False) -> Agent:
    """The function to call for an episode: the agent's `run` or `arun_episode`, or an agent that is a function.

    Call it with the task and its `address_arguments`. `environment` as in `make_agent`.

    Raises:
        AgentLoadError: it has neither, or takes other arguments.
    """
    if callable(run := getattr(agent, "run", None)):
        _check_run(run, f"agent {name}: `run`", {}, environment=environment)
        agent_run: Agent = run
        return agent_run
    if callable(episode := getattr(agent, "arun_episode", None)):
        _check_call(episode, f"agent {name}: `arun_episode`", "engine, data", {}, None, {})
        return functools.partial(_workflow, episode)
    if inspect.isroutine(agent) or isinstance(agent, functools.partial):
        function: Agent = agent
        return function
    raise AgentLoadError(f"agent {name} has no method `run`; write {SIGNATURE}")


def takes_any(function: Agent) -> bool:
    """True if a function takes any keyword argument (`**kwargs`), as AReaL's agents do."""
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in _parameters(function).values())


def takes_client(function: Agent) -> bool:
    """True if a function takes the HTTP client that episodes share: it has a parameter `http_client`, or takes any."""
    return "http_client" in _parameters(function) or takes_any(function)


@functools.lru_cache(maxsize=8)
def _parameters(function: Agent) -> Mapping[str, inspect.Parameter]:
    """Parameters by name; built-in functions, which have no signature, take the address."""
    try:
        return inspect.signature(function).parameters
    except ValueError:
        return {name: inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in ADDRESS}


def address_arguments(function: Agent, base_url: str, api_key: str) -> dict[str, Any]:
    """The address as keyword arguments for an agent's function: none if it takes the task alone.

    The URL has the key in place of the session's name: an agent may ignore the key, or make its client with another
    one.
    """
    base_url = keyed_url(base_url, api_key)
    if takes_any(function):
        return {"base_url": base_url, "api_key": api_key}
    return {
        name: value for name, value in (("base_url", base_url), ("api_key", api_key)) if name in _parameters(function)
    }


def keyed_url(base_url: str, api_key: str) -> str:
    """The base URL with the session's key in place of its name; the key in the header of such a request is not read.

    One without a session in its path, as of another server, stays as it is.
    """
    root, _, version = base_url.rpartition("/")
    place, _, session = root.rpartition("/")
    return f"{place}/{api_key}/{version}" if session and not place.endswith("/") else base_url


async def _workflow(episode: Agent, task: dict[str, Any], *, base_url: str, api_key: str) -> Any:
    return await run_workflow(episode, make_engine(task, base_url, api_key), task)


async def run_workflow(episode: Agent, engine: SimpleNamespace, task: dict[str, Any]) -> Any:
    """The return value of a workflow's `arun_episode`, once the checks of its engine have passed."""
    returned = await episode(engine, task)
    check_end(engine)
    return returned


def check_end(engine: SimpleNamespace) -> None:
    """Call the checks of an engine whose workflow has returned; one that raises fails the episode."""
    for check in engine.at_end:
        check()


def make_engine(task: dict[str, Any], base_url: str, api_key: str) -> SimpleNamespace:
    """The engine argument of a workflow: address and key of its model, the task, and checks to call at its end."""
    return SimpleNamespace(base_url=keyed_url(base_url, api_key), api_key=api_key, task=task, at_end=[])


def _check_run(function: Any, subject: str, options: Mapping[str, Any], *, environment: bool) -> None:
    """Raise `AgentLoadError` if a function does not take a task and the address.

    With `environment` the task alone suffices.
    """
    try:
        _check_call(function, subject, "task, base_url=…, api_key=…", {**ADDRESS, **options}, {})
    except AgentLoadError as refused:
        try:
            _check_call(function, subject, "task", options, {})
        except AgentLoadError:
            raise refused from None
        if not environment:
            raise AgentLoadError(f"{refused}; {IN_ENVIRONMENT}") from None


def _check_call(function: Any, subject: str, given: str, options: Mapping[str, Any], *arguments: Any) -> None:
    """Raise `AgentLoadError` if the function does not take these arguments.

    Built-in functions have no signature to check.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        wish = f"it is called with ({given})" if given else "give its arguments in [task.agent_options]"
        raise AgentLoadError(f"{subject} takes {signature}: {error}; {wish}") from error
