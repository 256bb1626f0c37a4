"""The reward `judge`: a model scores answers by a rubric, or compares the answers of a group.

`panel.py` asks the judges of a recipe for the reward worker, before the reward's processes add the parts up:
`settings.py` reads what they found. `questions.py` makes prompts, `verdict_forms.py` reads answers, `judge_client.py`
calls the model, `answer_store.py` keeps its answers, `comparisons.py` waits for the answers of a group, and
`calibration.py` measures a judge against labelled examples.
"""
