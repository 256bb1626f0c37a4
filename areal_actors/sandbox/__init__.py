r"""Programs that nobody trusts, of a model above all, shut in: for rewards, for tools of agents, for anybody.

from areal_actors.sandbox import run_python

answer = await run_python("print(6 * 7)")  # what it prints, or what went wrong
"""

from areal_actors.sandbox.programs import Limits, ProgramResult, run_program
from areal_actors.sandbox.tool import run_python

__all__ = ["Limits", "ProgramResult", "run_program", "run_python"]
