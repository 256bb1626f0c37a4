"""The program that tries the chat templates of packages, on small templates of the kinds that packages have."""

from __future__ import annotations

import json
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.template_parts import CHATML, COMMA, END, FOR_CALLS, JSON, chat_template

from areal_actors.gateway.template_settings import TemplateTest
from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import chat_templates
from template_trial import READ, REJECTED, UNREAD, WITHOUT_TOOLS, try_template

HERMES = chat_template(
    *CHATML, f'⏎{FOR_CALLS}<tool_call>⏎{{"name": "{{{{ it.name }}}}", "arguments": {JSON}}}⏎</tool_call>{END}'
)
FENCE = (
    "<|tool_call_start|>⏎```python⏎"
    f"{FOR_CALLS}{{{{ it.name }}}}({{% for key, value in it.arguments.items() %}}{{{{ key }}}}={{{{ value | tojson }}}}"
    f"{{% if not loop.last %}},{{% endif %}}{END})⏎{END}```⏎<|tool_call_end|>⏎"
)
PYTHON_LIST = (
    f"[{FOR_CALLS}{{{{ it.name }}}}({{% for key, value in it.arguments.items() %}}{{{{ key }}}}={{{{ '%s' |"
    f" format(value) }}}}{{% if not loop.last %}}, {{% endif %}}{END}){COMMA}{END}]"
)
OPEN_ID = (
    f'⏎<tool_calls>[{FOR_CALLS}{{"name": "{{{{ it.name }}}}", "arguments": {{{{ it.arguments | string }}}}, "id": "{{{{'
    f" call.id }}}}}}{COMMA}{END}]</tool_calls>"
)
NO_ARGUMENTS = (
    f'{FOR_CALLS}<tool_call>{{"name": "{{{{ it.name }}}}", "arguments": {{% if it.arguments %}}{JSON}{{% endif'
    f" %}}}}</tool_call>{END}"
)
TYPED = "⏎<tool_call>⏎{{ message.tool_calls | tojson(indent=2) }}⏎</tool_call>"
WITHOUT_CALLS = "{{ raise_exception('no calls') if message.tool_calls }}"
LISTED = "{{ tools | tojson }}"
DESCRIBED = {
    "fence": (FENCE, "Write ```python lines between <|tool_call_start|> and its end. " + LISTED, "<|tool_call_start|>"),
    "python list": (PYTHON_LIST, "Write [func_name1(params_name1=params_value1)]. " + LISTED, "["),
    "id without its quote": (OPEN_ID, 'Write <tool_calls>[{"name": …}]</tool_calls>. ' + LISTED, "<tool_calls>"),
    "no arguments": (NO_ARGUMENTS, LISTED, "<tool_call>"),
    "calls with their type": (TYPED, "{{ '<tool_call>\\n[…]' }}" + LISTED, "<tool_call>"),
    "<toolcall>": (
        "",
        "<extra_id_1>{% for tool in tools %}<tool> {{ tool | tojson }} </tool>{% endfor %}",
        "<toolcall>",
    ),
}
"""Calls as a template renders them, how it describes them, and the delimiter by which they are read."""
IN_SYSTEM = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}{% if message.functions %}"
    " <function_calls></function_calls> {{ message.functions }}{% endif %}<|im_end|>\n{% endfor %}{% if"
    " add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNLISTED = HERMES.replace("{%- if tools %}", "{%- if false %}")
NO_RESULTS = HERMES.replace("{{ message.content }}<|im_end|>", "<|im_end|>", 1)
OBSERVATIONS = HERMES.replace("message.role == 'tool'", "message.role == 'observation'").replace(
    "{%- else %}", "{%- elif message.role != 'tool' %}"
)


def support_of(source: str):
    template = ChatTemplate(source, {"eos_token": "<|im_end|>"})
    return template, tool_support(template, ["<|im_end|>"])[1]


@pytest.mark.parametrize(("calls", "tools", "opening"), DESCRIBED.values(), ids=DESCRIBED)
def test_calls_that_a_template_renders_with_mistakes_are_written_as_it_describes_them(calls, tools, opening):
    trial = try_template("t", chat_template(*CHATML, calls, tools=tools))
    assert (trial.outcome, trial.syntax, trial.reason) == (READ, f"learned: {opening}", "")


def test_tools_that_a_template_takes_in_its_system_message_are_put_there():
    template, support = support_of(IN_SYSTEM)
    assert (support.format, support.error, support.lists_tools) == ("learned", "", True)
    tools = [
        {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
    ]
    question = {"role": "user", "content": "u"}
    assert json.dumps(tools[0]["function"]["name"]) in template.render([question], tools)
    own = template.render([{"role": "system", "content": "Be brief."}, question], tools)
    assert own.count("<|im_start|>system") == 1
    assert "Be brief. <function_calls>" in own
    assert "function_calls" not in template.render([question], None)


def test_a_template_that_leaves_the_tools_out_is_named():
    support = support_of(UNLISTED)[1]
    assert (support.error, support.lists_tools) == ("", False)
    assert str(TemplateTest(support, None)).endswith("leaves the list of tools out: describe them in a message")
    assert not str(TemplateTest(support_of(HERMES)[1], None)).endswith("message")


def test_results_have_the_role_that_a_template_renders():
    template, support = support_of(OBSERVATIONS)
    assert (support.error, template.dialect.result_role) == ("", "observation")


def test_a_template_that_leaves_out_the_results_of_tools_is_refused():
    assert support_of(NO_RESULTS)[1].error == "the template leaves out the results of tools"


def test_each_outcome_has_its_reason():
    trials = {
        "hermes": HERMES,
        "no tools": "{% for message in messages %}{{ message.content }}{% endfor %}",
        "no chat": "{{ messages.title }}{{ raise_exception('needs a title') }}",
        "broken": "{% for message in messages %}",
        "no calls": chat_template(*CHATML, WITHOUT_CALLS),
    }
    outcomes = {name: try_template(name, source) for name, source in trials.items()}
    assert {name: trial.outcome for name, trial in outcomes.items()} == {
        "hermes": READ,
        "no tools": WITHOUT_TOOLS,
        "no chat": REJECTED,
        "broken": REJECTED,
        "no calls": UNREAD,
    }
    assert outcomes["hermes"].syntax == "hermes"
    assert outcomes["no chat"].reason == "needs a title"
    assert outcomes["broken"].reason.startswith("does not compile: ")
    assert "no calls" in outcomes["no calls"].reason


def test_templates_of_folders_and_archives_are_found_once(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "models"
    (folder / "one").mkdir(parents=True)
    (folder / "a.jinja").write_text(HERMES)
    (folder / "kernel.jinja").write_text("{{ tiles }}")
    config = {
        "chat_template": [{"name": "default", "template": HERMES}, {"name": "tool_use", "template": HERMES + " "}]
    }
    (folder / "one" / "tokenizer_config.json").write_text(json.dumps(config))
    with zipfile.ZipFile(tmp_path / "pack-1.0-py3-none-any.whl", "w") as archive:
        archive.writestr("pack/b.jinja", HERMES + "\n")
    with tarfile.open(tmp_path / "pack-2.0.tar.gz", "w:gz") as archive:
        archive.add(folder / "a.jinja", "pack-2.0/c.jinja")
    paths = [folder, tmp_path / "pack-1.0-py3-none-any.whl", tmp_path / "pack-2.0.tar.gz"]
    assert list(chat_templates.sources_in(paths).values()) == ["a", "one: tool_use", "b"]
    assert [chat_templates.package_name(path) for path in paths] == ["models", "pack 1.0", "pack 2.0"]
    monkeypatch.setattr(sys, "argv", ["chat_templates.py", *map(str, paths), "--no-history", "--all"])
    assert chat_templates.main() == 0
    printed = capsys.readouterr().out
    assert printed.startswith("3 templates, 3 read, 0 without tools, 0 no chat, 0 not read")
    assert "one: tool_use: read, hermes" in printed
    with pytest.raises(SystemExit, match="does not exist; name files, folders or archives"):
        chat_templates.sources_in([tmp_path / "nowhere"])


def test_the_page_has_counts_and_what_is_not_read():
    trials = [try_template(name, source) for name, source in (("hermes", HERMES), ("a|b", NO_RESULTS))]
    lines = list(chat_templates.page_lines("chat_templates-1", chat_templates.count(trials, ["pack 1.0"]), trials))
    assert lines[0].endswith("with pack 1.0: of 2 different templates")
    assert "| `hermes` | 1 | 1 |" in lines
    assert r"| leaves out the results of tools | a\|b |" in lines
