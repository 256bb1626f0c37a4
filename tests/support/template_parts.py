"""Parts of small chat templates. `⏎` is a line break."""

FOR_CALLS = "{%- for call in message.tool_calls %}{% set it = call.function %}"
FOR_ARGUMENTS = "{%- for key, value in it.arguments.items() %}"
END = "{%- endfor %}"
PLAIN = "{{ value if value is string else value | tojson }}"
JSON = "{{ it.arguments | tojson }}"
COMMA = "{% if not loop.last %}, {% endif %}"


def chat_template(turn, end, calls, *, tool="tool", tools="{{ tools | tojson }}", open_end=None):
    """The source of a template: the opening of a turn (with ROLE), its end, and the calls of a message."""
    closing = end if open_end is None else open_end
    source = (
        f"{{%- if tools %}}{turn.replace('ROLE', 'system')}{tools}{end}{{% endif %}}"
        "{%- for message in messages %}"
        f"{{%- if message.role == 'tool' %}}{turn.replace('ROLE', tool)}{{{{ message.content }}}}{end}"
        f"{{%- elif message.tool_calls %}}{turn.replace('ROLE', 'assistant')}{{{{ message.content }}}}{calls}{closing}"
        f"{{%- else %}}{turn.replace('ROLE', '{{ message.role }}')}{{{{ message.content }}}}{end}{{% endif %}}{END}"
        f"{{%- if add_generation_prompt %}}{turn.replace('ROLE', 'assistant')}{{% endif %}}"
    )
    return source.replace("⏎", "{{ '\\n' }}")


CHATML = ("<|im_start|>ROLE⏎", "<|im_end|>⏎")
