"""Small chat templates in the call syntax of model families, and a known call as each writes it. `⏎` is a line
break."""

from support.tagged_templates import TAGGED, TAGGED_CALLS
from support.template_parts import COMMA, END, FOR_ARGUMENTS, FOR_CALLS, JSON, PLAIN, chat_template

from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

GEMMA_VALUE = (
    '{%- macro written(value) %}{% if value is string %}<|"|>{{ value }}<|"|>{% elif value is mapping %}{{ "{" }}{% for'
    ' key, one in value | dictsort %}{{ key }}:{{ written(one) }}{% if not loop.last %},{% endif %}{% endfor %}{{ "}"'
    " }}{% elif value is iterable %}[{% for one in value %}{{ written(one) }}{% if not loop.last %},{% endif %}{%"
    " endfor %}]{% else %}{{ value | tojson }}{% endif %}{% endmacro %}"
)
DSML = "｜DSML｜"
TEMPLATES = {
    "apertus": chat_template(
        "<|ROLE_start|>",
        "<|turn_end|>",
        f'<|tools_prefix|>[{FOR_CALLS}{{{{ "{{" }}}}"{{{{ it.name }}}}": {JSON}{{{{ "}}"'
        f" }}}}{COMMA}{END}]<|tools_suffix|>",
    ),
    "apriel": chat_template(
        "<|ROLE|>⏎",
        "⏎<|end|>⏎",
        "⏎<tool_calls>["
        + FOR_CALLS
        + '{"name": "{{ it.name }}", "arguments": {{ it.arguments | string }}, "id": "{{ call.id }}"}'
        + COMMA
        + END
        + "]</tool_calls>",
    ),
    "command_r7b": chat_template(
        "<|START_OF_TURN_TOKEN|><|ROLE_TOKEN|>",
        "<|END_OF_TURN_TOKEN|>",
        "<|START_ACTION|>[⏎"
        + FOR_CALLS
        + '    {"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ it.name }}", "parameters": '
        + JSON
        + "}{% if not loop.last %},{% endif %}⏎"
        + END
        + "]<|END_ACTION|>",
    ),
    "deepseek_v3_2": chat_template(
        "<｜ROLE｜>",
        "<｜end▁of▁sentence｜>",
        f'⏎⏎<{DSML}function_calls>⏎{FOR_CALLS}<{DSML}invoke name="{{{{ it.name }}}}">⏎{FOR_ARGUMENTS}<{DSML}parameter'
        ' name="{{ key }}" string="{{ "true" if value is string else "false"'
        f' }}}}">{PLAIN}</{DSML}parameter>⏎{END}</{DSML}invoke>⏎{END}</{DSML}function_calls>',
    ),
    "gemma4": (
        GEMMA_VALUE
        + chat_template(
            "<|turn>ROLE⏎",
            "<turn|>⏎",
            f"{FOR_CALLS}<|tool_call>call:{{{{ it.name }}}}{{{{ written(it.arguments) }}}}<tool_call|>{END}",
            open_end="<|tool_response>",
        )
    ),
    "gigachat3": chat_template(
        "ROLE<|role_sep|>⏎",
        "<|message_sep|>⏎⏎",
        f'{FOR_CALLS}<|message_sep|>⏎⏎function call<|role_sep|>⏎{{"name": "{{{{ it.name }}}}", "arguments":'
        f" {JSON}}}{END}",
    ),
    "granite_3_3": chat_template(
        "<|start_of_role|>ROLE<|end_of_role|>",
        "<|end_of_text|>⏎",
        "",
        tools="Respond with <|tool_call|> followed by a JSON list of tools used. {{ tools | tojson }}",
    ),
    "kimi_k2": chat_template(
        "<|im_ROLE|>ROLE<|im_middle|>",
        "<|im_end|>",
        f"<|tool_calls_section_begin|>{FOR_CALLS}<|tool_call_begin|>{{{{ call.id }}}}<|tool_call_argument_begin|>{JSON}"
        f"<|tool_call_end|>{END}"
        "<|tool_calls_section_end|>",
    ),
    "minimax_m2": chat_template(
        "]~b]ROLE⏎",
        "[e~[⏎",
        f'⏎<minimax:tool_call>⏎{FOR_CALLS}<invoke name="{{{{ it.name }}}}">⏎{FOR_ARGUMENTS}'
        f'<parameter name="{{{{ key }}}}">{PLAIN}</parameter>⏎'
        f"{END}</invoke>⏎{END}</minimax:tool_call>",
    ),
    "nemotron_nano_v2": chat_template(
        "<SPECIAL_11>ROLE⏎",
        "⏎<SPECIAL_12>⏎",
        f'⏎<TOOLCALL>[{FOR_CALLS}{{"name": "{{{{ it.name }}}}", "arguments": {JSON}}}{COMMA}{END}]</TOOLCALL>',
    ),
    "seed_oss": chat_template(
        "<seed:bos>ROLE⏎",
        "<seed:eos>",
        f"⏎⏎{FOR_CALLS}<seed:tool_call>⏎<function={{{{ it.name }}}}>⏎{FOR_ARGUMENTS}"
        f"<parameter={{{{ key }}}}>{{{{ value }}}}</parameter>⏎{END}"
        f"</function>⏎</seed:tool_call>{{% if not loop.last %}}⏎{{% endif %}}{END}",
    ),
    "solar_open": chat_template(
        "<|begin|>ROLE<|content|>",
        "<|end|>",
        f"<|tool_calls|>{FOR_CALLS}<|tool_call:begin|>{{{{ call.id }}}}<|tool_call:name|>{{{{ it.name"
        f" }}}}<|tool_call:args|>{JSON}<|tool_call:end|>{END}",
        open_end="<|calls|>",
    ),
    **TAGGED,
}
STOPS = {"solar_open": ("<|calls|>", "<|end|>"), "gemma4": ("<turn|>", "<|tool_response>")}
"""Texts of stop tokens; the others end with the end of their turns."""
SINGLE_CALL = ("gigachat3",)

PARIS = '{"city": "Paris", "days": 3}'
ONE_CALL = {
    "apertus": f'<|tools_prefix|>[{{"weather": {PARIS}}}]<|tools_suffix|>',
    "apriel": f'<tool_calls>[{{"name": "weather", "arguments": {PARIS}}}]</tool_calls>',
    "command_r7b": (
        '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "weather", "parameters":'
        f" {PARIS}}}\n]<|END_ACTION|>"
    ),
    "deepseek_v3_2": (
        f'<{DSML}function_calls>\n<{DSML}invoke name="weather">\n'
        f'<{DSML}parameter name="city" string="true">Paris</{DSML}parameter>\n'
        f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n</{DSML}invoke>\n</{DSML}function_calls>'
    ),
    "gemma4": '<|tool_call>call:weather{city:<|"|>Paris<|"|>,days:3}<tool_call|>',
    "gigachat3": f'<|message_sep|>\n\nfunction call<|role_sep|>\n{{"name": "weather", "arguments": {PARIS}}}',
    "granite_3_3": f'<|tool_call|>[{{"name": "weather", "arguments": {PARIS}}}]',
    "kimi_k2": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>"
        f"{PARIS}<|tool_call_end|><|tool_calls_section_end|>"
    ),
    "minimax_m2": (
        '<minimax:tool_call>\n<invoke name="weather">\n'
        '<parameter name="city">Paris</parameter>\n<parameter name="days">3</parameter>\n'
        "</invoke>\n</minimax:tool_call>"
    ),
    "nemotron_nano_v2": f'<TOOLCALL>[{{"name": "weather", "arguments": {PARIS}}}]</TOOLCALL>',
    "seed_oss": (
        "<seed:tool_call>\n<function=weather>\n<parameter=city>Paris</parameter>\n"
        "<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
    ),
    "solar_open": (
        f"<|tool_calls|><|tool_call:begin|>callP1a2r<|tool_call:name|>weather<|tool_call:args|>{PARIS}<|tool_call:end|>"
    ),
    **TAGGED_CALLS,
}
"""A call of `weather` in every family's syntax."""


def template_of(family):
    """The compiled template of a family."""
    return ChatTemplate(TEMPLATES[family], {})


def form_of(family):
    """The format of a family, and the template with the dialect that was chosen for it."""
    template = template_of(family)
    form, support = tool_support(template, STOPS.get(family, ()))
    assert support.error == ""
    return form, template
