r"""A sandbox for untrusted programs, such as those of a model: for rewards and for tools of agents.

from areal_actors.sandbox import run_python

answer = await run_python("print(6 * 7)")  # its output, or the error
"""

from areal_actors.sandbox.programs import Limits, ProgramResult, run_program
from areal_actors.sandbox.tool import run_python

__all__ = ["Limits", "ProgramResult", "run_program", "run_python"]
