"""An environment with the interface of verifiers before 0.2: one turn, two weighted functions and a metric."""

import verifiers as vf
from datasets import Dataset


def load_environment(*, numbers: int = 6, fails: bool = False, compares: bool = False) -> vf.Environment:
    rows = [
        {"question": f"What is {number} + 1?", "answer": str(number + 1), "info": {"number": number}}
        for number in range(numbers)
    ]
    parser = vf.Parser()

    def right(completion, answer, **_):
        if fails:
            raise KeyError("no such row")
        return float(answer in (parser.parse_answer(completion) or ""))

    async def short(completion, info, **_):
        assert isinstance(info["number"], int)
        return 1.0 if len(completion[-1]["content"]) < 20 else 0.0

    def longest(completions, **_) -> list[float]:
        return [1.0 for _ in completions]

    rubric = vf.Rubric(
        funcs=[right, short, *([longest] if compares else [])],
        weights=[1.0, 0.5, *([0.1] if compares else [])],
        parser=parser,
    )
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), rubric=rubric, system_prompt="Answer with a number.", parser=parser
    )
