"""A hundred wrong inputs of `areal-actors check`: recipes, settings, agents, rewards and data, each with the refusal
that it gets."""

import json

AGENT = """
from openai import AsyncOpenAI

async def ask(task, base_url, api_key):
    async with AsyncOpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        messages = [{"role": "user", "content": task["question"]}]
        answer = await client.chat.completions.create(model="default", messages=messages)
    return answer.choices[0].message.content

async def run(task, *, base_url, api_key):
    return await ask(task, base_url, api_key)

def reward(task, output):
    return float(output == task["answer"])
"""
RECIPE = """run   = "mine"
steps = 2
model = "embedded"

[task]
agent   = "agent.py:run"
reward  = "agent.py:reward"
dataset = "tasks.jsonl"
retries = 0
"""
ROWS = [json.dumps({"question": f"{number}+0", "answer": str(number)}) for number in range(400)]


def recipe(refusal, old, new, **files):
    """A changed line of the recipe."""
    assert old in RECIPE
    return refusal, ["recipe.toml"], {"recipe.toml": RECIPE.replace(old, new), **files}


def written(refusal, content):
    """Another recipe file."""
    return refusal, ["recipe.toml"], {"recipe.toml": content}


def words(refusal, *arguments):
    """Arguments after the recipe."""
    return refusal, ["recipe.toml", *arguments], {}


def agent(refusal, added, name="run", *arguments):
    """Lines added to the agent's file, and the name that the recipe has."""
    files = {"agent.py": f"{AGENT}\n{added}\n", "recipe.toml": RECIPE.replace("agent.py:run", f"agent.py:{name}")}
    return refusal, ["recipe.toml", *arguments], files


def reward(refusal, added, *arguments):
    """A reward function named `scored`."""
    files = {"agent.py": f"{AGENT}\n{added}\n", "recipe.toml": RECIPE.replace("agent.py:reward", "agent.py:scored")}
    return refusal, ["recipe.toml", *arguments], files


def rows(refusal, place=None, row="", count=400):
    """A changed row, or fewer rows."""
    changed = ROWS[:count]
    if place is not None:
        changed[place] = row
    return refusal, ["recipe.toml"], {"tasks.jsonl": "\n".join(changed)}


WRONG = {
    # recipe files
    "no such recipe": ("nowhere.toml: no such file ... did you mean recipe.toml?", ["nowhere.toml"], {}),
    "a folder": (".: cannot be read: Is a directory ... name a TOML file", ["."], {}),
    "a Python file": ("agent.py:2: not valid TOML at column 6 ... a line is `key = value`", ["agent.py"], {}),
    "a mistyped name": ("gsm8k_grop: no such file; did you mean gsm8k_grpo?", ["gsm8k_grop"], {}),
    "a setting without a value": (
        "`steps` is a setting, and needs a value: write `steps=VALUE`",
        ["recipe.toml", "steps"],
        {},
    ),
    "an unknown option": ("`stepps` is not a setting; did you mean `steps`?", ["recipe.toml", "--stepps", "3"], {}),
    "an empty file": written("recipe.toml: `run` is missing; write `run = …` at the top", ""),
    "a binary file": written("recipe.toml: is not UTF-8 text (byte 1); a recipe is a TOML file", b"\x00\xff\xfe\x00"),
    "another encoding": written("recipe.toml: is not UTF-8 text (byte 8)", 'run = "m\xfcller"\n'.encode("latin-1")),
    "an open string": recipe("recipe.toml:1: not valid TOML at column 14", '"mine"', '"mine'),
    "an open table": recipe("recipe.toml:5: not valid TOML at column 6: expected ']'", "[task]", "[task"),
    "a key twice": recipe("recipe.toml:3: not valid TOML ... a key occurs once", "steps = 2", "steps = 2\nsteps = 3"),
    "YAML": written("recipe.toml:1: not valid TOML ... TOML writes `key = value`", "run: mine\nsteps: 2\n"),
    "JSON": written("recipe.toml:1: not valid TOML ... a line is `key = value`", '{"run": "mine"}'),
    # settings at the top
    "no run": recipe("recipe.toml: `run` is missing; write `run = …` at the top", 'run   = "mine"\n', ""),
    "a run with a slash": recipe(
        'recipe.toml:1: `run`: found "my/run", expected text of lowercase letters', '"mine"', '"my/run"'
    ),
    "an empty run": recipe('recipe.toml:1: `run`: found "" ... as in `my-run-2`', '"mine"', '""'),
    "a run with a space": recipe(
        'recipe.toml:1: `run`: found "my run" ... letters, digits and hyphens', '"mine"', '"my run"'
    ),
    "a number as a run": recipe("recipe.toml:1: `run`: found 7, expected text", '"mine"', "7"),
    "no steps": recipe("recipe.toml: `steps` is missing; write `steps = …`", "steps = 2\n", ""),
    "no step": recipe("recipe.toml:2: `steps`: found 0, expected a whole number >= 1", "steps = 2", "steps = 0"),
    "fewer steps than none": recipe("recipe.toml:2: `steps`: found -3, expected", "steps = 2", "steps = -3"),
    "steps as text": recipe('recipe.toml:2: `steps`: found "2", expected a whole number', "steps = 2", 'steps = "2"'),
    "half a step": recipe("recipe.toml:2: `steps`: found 2.5, expected a whole number", "steps = 2", "steps = 2.5"),
    "steps without an end": recipe(
        "recipe.toml:2: `steps`: found 1e+23, expected ... 2**63", "steps = 2", f"steps = {10**23}"
    ),
    "no model": recipe("recipe.toml: `model` is missing; write `model = …`", 'model = "embedded"\n', ""),
    "a mistyped model": recipe(
        'recipe.toml:3: `model`: found "embeded"; write "embedded", a hub id', '"embedded"', '"embeded"'
    ),
    "a model that is not there": recipe(
        "recipe.toml:3: `model`: ... no such folder ... name a checkpoint", '"embedded"', '"./none"'
    ),
    "a model without configuration": recipe(
        "recipe.toml:3: `model`: ... no config.json", '"embedded"', '"bare"', **{"bare/a.txt": ""}
    ),
    "a damaged tokenizer": recipe(
        "broken/tokenizer.json cannot be loaded ... save it again",
        '"embedded"',
        '"broken"',
        **{"broken/config.json": "{}", "broken/tokenizer.json": "{}"},
    ),
    "a model of a hub that is not reached": recipe(
        "model 'nobody/nothing' is neither ... set model to", '"embedded"', '"nobody/nothing"'
    ),
    "a seed as text": words('override `seed=abc`: `seed`: found "abc", expected a whole number', "seed=abc"),
    "a seed below 0": words("override `seed=-1`: `seed`: found -1; write a whole number from 0", "seed=-1"),
    "an unknown profile": words('`profile`: found no profile "cudda"; known: auto', "profile=cudda"),
    "an unknown setting": recipe(
        "recipe.toml:3: `stepss` is not a setting; did you mean `steps`?", "steps = 2", "steps = 2\nstepss = 3"
    ),
    "an unknown table": written(
        "recipe.toml:10: `trianer` is not a setting; did you mean `trainer`?", f"{RECIPE}[trianer]\ndevice = 1\n"
    ),
    "a mistyped key": recipe(
        "recipe.toml:9: `task.retires` is not a setting; did you mean `retries`?", "retries", "retires"
    ),
    "a key of another table": written(
        "recipe.toml:11: `trainer.lr` is not a setting; did you mean `trainer.optimizer.lr`?",
        f"{RECIPE}[trainer]\nlr = 0.001\n",
    ),
    "a key of another station": words(
        "`trainer.minibatches` is not a setting; did you mean `algorithm.minibatches`?", "trainer.minibatches=0"
    ),
    "a table of another system": words(
        "`rollout` is not a setting; did you mean `algorithm.group_size`?", "rollout.group_size=8"
    ),
    "a value as a table": recipe(
        "recipe.toml:5: `sampling`: found 3, expected a table", "[task]", "sampling = 3\n[task]"
    ),
    "no task": written(
        "recipe.toml: `task` is missing; write a table `[task]`", 'run = "mine"\nsteps = 2\nmodel = "embedded"\n'
    ),
    # the agent
    "options without an agent": recipe(
        "`task.agent_options`: found options, but the built-in agent has only",
        'agent   = "agent.py:run"\n',
        "agent_options = { a = 1 }\n",
    ),
    "no such agent file": recipe(
        "recipe.toml:6: `task.agent`: ... no file agnet.py ... fix the path", "agent.py:run", "agnet.py:run"
    ),
    "an agent file without a name": recipe(
        "`task.runner`: ... or name its class or function", "agent.py:run", "agent.py"
    ),
    "a mistyped function": recipe(
        "recipe.toml:6: `task.agent`: ... did you mean `run`?", "agent.py:run", "agent.py:rnu"
    ),
    "a missing package": recipe(
        "recipe.toml:6: `task.agent`: ... no package `no_such_package` is installed ... fix the name",
        "agent.py:run",
        "no_such_package.first:run",
    ),
    "a name in a script": recipe(
        'recipe.toml:6: `task.agent`: ... write `agent = "agent.mjs"`', "agent.py:run", "agent.mjs:run"
    ),
    "a folder as an agent": recipe(
        "recipe.toml:6: `task.agent`: ... write the class as `path.py:Name`", "agent.py:run", ".:run"
    ),
    "not Python": agent(
        "recipe.toml:6: `task.agent`: ... agent.py:16 is not valid Python ... fix that file", "def x(:"
    ),
    "an import that fails": agent("agent.py:16 raised ModuleNotFoundError: No module named 'torchh'", "import torchh"),
    "an error on import": agent(
        "agent.py:16 raised RuntimeError: licence expired", "raise RuntimeError('licence expired')"
    ),
    "an exit on import": agent("agent.py:17 raised SystemExit: 3", "import sys\nsys.exit(3)"),
    "a number as an agent": agent("agent.py:number has no method `run`; write `async def run(", "number = 3", "number"),
    "a class without run": agent("agent.py:A has no method `run`; write `async def run(", "class A:\n    pass", "A"),
    "a constructor that fails": agent(
        "agent.py:A: making one raised ValueError: no key at agent.py:18",
        "class A:\n    def __init__(self):\n        raise ValueError('no key')\n    async def run(self, task, *,"
        " base_url, api_key): ...",
        "A",
    ),
    "an argument too many": agent(
        "agent.py:needs takes ... missing a required argument: 'database'; it is called with",
        "async def needs(task, *, base_url, api_key, database): ...",
        "needs",
    ),
    "no arguments": agent(
        "agent.py:none takes (): too many positional arguments; it is called with", "async def none(): ...", "none"
    ),
    "an object as a result": agent(
        "agent.py:odd returned {'a': ... a reward must be a real number",
        "async def odd(task, *, base_url, api_key):\n    await ask(task, base_url, api_key)\n    return {'a':"
        " object()}",
        "odd",
    ),
    "a generator": agent(
        "agent.py:parts ... a reward must be a real number",
        "async def parts(task, *, base_url, api_key):\n    yield 1",
        "parts",
    ),
    "an agent that calls no model": agent(
        "the agent made no model call through its base_url",
        "async def silent(task, *, base_url, api_key):\n    return '4'",
        "silent",
    ),
    "a field that the task lacks": agent(
        "agent.py:wrong raised KeyError: 'qestion' at agent.py:17",
        "async def wrong(task, *, base_url, api_key):\n    return task['qestion']",
        "wrong",
    ),
    "an agent that does not return": agent(
        "the agent did not return within 1 s; raise task.timeout_seconds ... it waited at agent.py:18",
        "import asyncio\nasync def slow(task, *, base_url, api_key):\n    await asyncio.sleep(1000)",
        "slow",
        "task.timeout_seconds=1",
    ),
    "another base_url": agent(
        "agent.py:away raised APIConnectionError ... at agent.py:7",
        "async def away(task, *, base_url, api_key):\n    return await ask(task, 'http://127.0.0.1:9/v1', api_key)",
        "away",
    ),
    "another key": agent(
        "agent.py:other raised AuthenticationError ... send the key that came with the session's base_url",
        "async def other(task, *, base_url, api_key):\n    return await ask(task, base_url.replace(api_key,"
        " 'my-session'), 'sk-mine')",
        "other",
    ),
    # the reward
    "a mistyped reward": recipe(
        "recipe.toml:7: `task.reward`: ... did you mean `reward`?", "agent.py:reward", "agent.py:rewrd"
    ),
    "no such reward file": recipe(
        "recipe.toml:7: `task.reward`: ... no file rewards.py ... fix the path", "agent.py:reward", "rewards.py:reward"
    ),
    "an unknown reward": recipe(
        "recipe.toml:7: `task.reward`: ... known: format, gsm8k, json_schema", "agent.py:reward", "math_anwser"
    ),
    "no such reward model": words(
        "`task.reward`: ... no such folder ... train one first", "task.reward=model:./nothing"
    ),
    "a reward without output": reward(
        "must take the task's row and the output: `def reward(task, output)`", "def scored(task):\n    return 1.0"
    ),
    "text as a reward": reward(
        "agent.py:scored failed: a reward must be a real number, got str 'good'",
        "def scored(task, output):\n    return 'good'",
    ),
    "nothing as a reward": reward(
        "agent.py:scored failed: a reward must be a real number, got None", "def scored(task, output):\n    pass"
    ),
    "not a number": reward(
        "agent.py:scored failed: a reward must be finite, got nan", "def scored(task, output):\n    return float('nan')"
    ),
    "a reward that raises": reward(
        "agent.py:scored raised ZeroDivisionError", "def scored(task, output):\n    return 1 / 0"
    ),
    "a column that the row lacks": reward(
        "agent.py:scored raised KeyError: 'anser'", "def scored(task, output):\n    return task['anser']"
    ),
    "a reward that hangs": reward(
        "agent.py:scored hung for more than 1 s",
        "import time\ndef scored(task, output):\n    time.sleep(100)",
        "task.reward_timeout_seconds=1",
    ),
    # the data
    "no such data": recipe(
        "recipe.toml:8: `task.dataset`: ... no such file ... or the path of a .jsonl file", "tasks.jsonl", "task.jsonl"
    ),
    "a mistyped dataset": recipe(
        "recipe.toml:8: `task.dataset`: ... did you mean `arithmetic`?", "tasks.jsonl", "arithmetik"
    ),
    "CSV": recipe("tasks.csv: the file has no rows", "tasks.jsonl", "tasks.csv", **{"tasks.csv": "question,answer\n"}),
    "a folder of data": recipe(
        "recipe.toml:8: `task.dataset`: ... known: arithmetic", "tasks.jsonl", "data", **{"data/a.txt": ""}
    ),
    "an array": recipe("tasks.json: the file has no rows", "tasks.jsonl", "tasks.json", **{"tasks.json": "[]"}),
    "no rows": rows("tasks.jsonl: the file has no rows; write one object a line", count=0),
    "a row that is not JSON": rows("tasks.jsonl:6: not JSON", 5, "{bad"),
    "a row that is cut off": rows("tasks.jsonl:400: not JSON", 399, '{"question": "x"'),
    "a list as a row": rows("tasks.jsonl:8: expected an object with `question` and `answer`, got list", 7, "[1, 2]"),
    "a row without an answer": rows(
        "tasks.jsonl:10: `answer` is missing ... write `task.columns", 9, '{"question": "x"}'
    ),
    "data in another encoding": (
        "tasks.jsonl: byte 14 is not UTF-8; save the file as UTF-8",
        ["recipe.toml"],
        {"tasks.jsonl": b'{"question": "\xff"}'},
    ),
    "three rows": rows("`task.held_out`: found 200, but tasks.jsonl has 3 rows; hold out fewer", count=3),
    "all rows held out": rows("`task.held_out`: found 200, but tasks.jsonl has 150 rows", count=150),
    # numbers and choices
    "held-out tasks below 0": words(
        "`evaluation.tasks`: found -1, expected a whole number >= 0", "evaluation.tasks=-1"
    ),
    "a learning rate below 0": words(
        "`trainer.optimizer.lr`: found -1, expected a number >= 0", "trainer.optimizer.lr=-1"
    ),
    "a learning rate in words": words(
        '`trainer.optimizer.lr`: found "fast", expected a number', "trainer.optimizer.lr=fast"
    ),
    "a learning rate that is no number": words(
        "`trainer.optimizer.lr`: found nan, expected", "trainer.optimizer.lr=nan"
    ),
    "greedy sampling": words(
        "`sampling.temperature`: found 0, but greedy answers ... write a number above 0", "sampling.temperature=0"
    ),
    "a temperature below 0": words(
        "`sampling.temperature`: found -0.5, expected a number >= 0", "sampling.temperature=-0.5"
    ),
    "a share above 1": words("`sampling.top_p`: found 1.5; write a share above 0 and at most 1", "sampling.top_p=1.5"),
    "no token": words("`sampling.max_tokens`: found 0, expected a whole number >= 1", "sampling.max_tokens=0"),
    "completions longer than the model": words(
        "`generation.max_model_len`: found 200000 ... write at most 8192", "sampling.max_tokens=100000"
    ),
    "staleness below 0": words(
        "`staleness_gate.max_staleness`: found -1, expected a whole number >= 0", "staleness_gate.max_staleness=-1"
    ),
    "a mistyped algorithm": words('`algorithm.name`: found "gpro" ... did you mean "grpo"?', "algorithm.name=gpro"),
    "an option of another algorithm": words(
        '`algorithm.gae_lambda` is not a setting ... where `name` is "ppo"', "algorithm.gae_lambda=0.9"
    ),
    "a mistyped engine": words('`generation.engine`: found "vlm"; did you mean `vllm`?', "generation.engine=vlm"),
    "an engine that is not installed": words(
        'generation.engine = "sglang": ... `just environments sglang`', "generation.engine=sglang"
    ),
    "a mistyped device": words(
        '`trainer.device`: found "gpu", expected one of "auto", "cpu", "cuda"', "trainer.device=gpu"
    ),
    "a port in words": words('`gateway.port`: found "http", expected a whole number', "gateway.port=http"),
    "a port above the highest": words(
        "`gateway.port`: found 70000, expected a whole number <= 65535", "gateway.port=70000"
    ),
    "a mistyped tracker": words(
        '`track.to`: found "tensorbord"; did you mean `tensorboard`?', 'track.to=["tensorbord"]'
    ),
    "no value": words('override `steps=`: `steps`: found "", expected a whole number', "steps="),
    "two dots": words("override `task..agent=x`: found no setting in it; write `table.key=value`", "task..agent=x"),
    "a file as the folder of runs": words("folder: the run cannot be kept in ... is a file", "folder=tasks.jsonl"),
    "no concurrency": words(
        "`actors.rollout_worker.concurrency`: found 0, expected", "actors.rollout_worker.concurrency=0"
    ),
    "a mistyped actor": words(
        "`actors.rolout_worker` is not a setting; did you mean `rollout_worker`?", "actors.rolout_worker.count=2"
    ),
}
"""Name: parts of the refusal in their order, the command's arguments, and files that differ."""
