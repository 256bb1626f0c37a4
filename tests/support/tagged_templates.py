"""Small chat templates whose calls have attributes, types, CDATA or elements inside, as model families write them. `⏎`
is a line break."""

from support.template_parts import CHATML, END, FOR_ARGUMENTS, FOR_CALLS, PLAIN, chat_template

TYPE = (
    "{%- macro type_of(value) %}{% if value is boolean %}boolean{% elif value is none %}null{% elif value is number"
    " %}number{% elif value is string %}string{% elif value is mapping %}object{% else %}array{% endif %}{% endmacro %}"
)
M3 = "]<]mark[>["
ELEMENTS = (
    "{%- macro inside(value) %}{% if value is mapping %}{% for key, one in value.items() %}"
    f"{M3}<{{{{ key }}}}>{{{{ inside(one) }}}}{M3}</{{{{ key }}}}>{END}"
    "{% elif value is iterable and value is not string %}"
    f"{{% for one in value %}}{M3}<item>{{{{ inside(one) }}}}{M3}</item>{END}"
    "{% else %}{{ value | tojson if value is boolean else value }}{% endif %}{% endmacro %}"
)
TYPED_ELEMENTS = (
    f"{TYPE}{{%- macro inside(value) %}}{{% if value is mapping %}}{{% for key, one in value.items() %}}"
    f'<parameter name="{{{{ key }}}}" type="{{{{ type_of(one) }}}}">{{{{ inside(one) }}}}</parameter>{END}'
    "{% elif value is iterable and value is not string %}"
    f'{{% for one in value %}}<item type="{{{{ type_of(one) }}}}">{{{{ inside(one) }}}}</item>{END}'
    f"{{% else %}}{{{{ {PLAIN[3:-3]} }}}}{{% endif %}}{{% endmacro %}}"
)
TAGGED = {
    "cdata": chat_template(
        *CHATML,
        f'⏎{FOR_CALLS}<function name="{{{{ it.name }}}}">{FOR_ARGUMENTS}<param name="{{{{ key }}}}">{{% if value is'
        " string and ('<' in value or '\\n' in value) %}<![CDATA[{{ value }}]]>{% else %}{{ value }}{%"
        f" endif %}}</param>{END}</function>{{% if not loop.last %}}⏎{{% endif %}}{END}",
    ),
    "elements": (
        ELEMENTS
        + chat_template(
            *CHATML,
            f'{M3}<tool_call>⏎{FOR_CALLS}{M3}<invoke name="{{{{ it.name }}}}">{{{{ inside(it.arguments)'
            f" }}}}{M3}</invoke>⏎{END}{M3}</tool_call>",
        )
    ),
    "type_after_name": (
        TYPE
        + chat_template(
            *CHATML,
            f'⏎<calls>⏎{FOR_CALLS}<invoke name="{{{{ it.name }}}}">⏎{FOR_ARGUMENTS}<parameter name="{{{{ key }}}}"'
            f' type="{{{{ type_of(value) }}}}">{PLAIN}</parameter>⏎{END}</invoke>⏎{END}</calls>',
        )
    ),
    "type_before_name": (
        TYPE
        + chat_template(
            *CHATML,
            f'⏎{FOR_CALLS}<tool:call name="{{{{ it.name }}}}">⏎{FOR_ARGUMENTS}'
            f'<arg type="{{{{ type_of(value) }}}}" key="{{{{ key }}}}">{PLAIN}</arg>⏎{END}</tool:call>⏎{END}',
        )
    ),
    "typed_elements": (
        TYPED_ELEMENTS
        + chat_template(
            *CHATML,
            f'⏎<calls>⏎{FOR_CALLS}<invoke name="{{{{ it.name }}}}">{{{{ inside(it.arguments)'
            f" }}}}</invoke>⏎{END}</calls>",
        )
    ),
    "response_element": (
        TYPE
        + chat_template(
            '<|open|>message role="ROLE"<|sep|>',
            "<|close|>message<|sep|><|end_of_msg|>",
            "<|close|>response<|sep|><|open|>tools<|sep|>"
            f'{FOR_CALLS}<|open|>call tool="{{{{ it.name }}}}" index="{{{{ loop.index }}}}"<|sep|>{FOR_ARGUMENTS}'
            '<|open|>argument key="{{ key }}" type="{{ type_of(value)'
            f' }}}}"<|sep|>{PLAIN}<|close|>argument<|sep|>{END}'
            f"<|close|>call<|sep|>{END}<|close|>tools<|sep|>",
        ).replace(
            "{{ message.content }}<|close|>response", "<|open|>response<|sep|>{{ message.content }}<|close|>response"
        )
    ),
    "channel": (
        (
            "{#- <|start|>assistant to=self<|message|>REASONING<|eom|> #}{%- if tools %}<|start|>system<|message|>{{"
            " tools | tojson }}<|eot|>"
            "{% endif %}{%- for message in messages %}{%- if message.tool_calls %}"
            f'{FOR_CALLS}<|start|>assistant to={{{{ it.name }}}}<|message|><x:calls>⏎<x:invoke name="{{{{ it.name'
            ' }}">⏎'
            f'{FOR_ARGUMENTS}<x:parameter name="{{{{ key }}}}">{PLAIN}</x:parameter>⏎{END}</x:invoke>⏎</x:calls>'
            f"{{% if loop.last %}}<|eot|>{{% else %}}<|eom|>{{% endif %}}{END}"
            "{%- elif message.role == 'assistant' %}<|start|>assistant to=user<|message|>{{ message.content }}<|eot|>"
            f"{{%- else %}}<|start|>{{{{ message.role }}}}<|message|>{{{{ message.content }}}}<|eot|>{{% endif %}}{END}"
            "{%- if add_generation_prompt %}<|start|>assistant{% endif %}"
        ).replace("⏎", "{{ '\\n' }}")
    ),
}
TAGGED_CALLS = {
    "cdata": '<function name="weather"><param name="city">Paris</param><param name="days">3</param></function>',
    "elements": (
        f'{M3}<tool_call>\n{M3}<invoke name="weather">{M3}<city>Paris{M3}</city>{M3}<days>3{M3}</days>'
        f"{M3}</invoke>\n{M3}</tool_call>"
    ),
    "type_after_name": (
        '<calls>\n<invoke name="weather">\n<parameter name="city" type="string">Paris</parameter>\n'
        '<parameter name="days" type="number">3</parameter>\n</invoke>\n</calls>'
    ),
    "type_before_name": (
        '<tool:call name="weather">\n<arg type="string" key="city">Paris</arg>\n'
        '<arg type="number" key="days">3</arg>\n</tool:call>'
    ),
    "typed_elements": (
        '<calls>\n<invoke name="weather"><parameter name="city" type="string">Paris</parameter>'
        '<parameter name="days" type="number">3</parameter></invoke>\n</calls>'
    ),
    "response_element": (
        '<|open|>tools<|sep|><|open|>call tool="weather" index="1"<|sep|><|open|>argument key="city"'
        ' type="string"<|sep|>Paris<|close|>argument<|sep|><|open|>argument key="days"'
        ' type="number"<|sep|>3<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
    ),
    "channel": (
        '<x:calls>\n<x:invoke name="weather">\n<x:parameter name="city">Paris</x:parameter>\n'
        '<x:parameter name="days">3</x:parameter>\n</x:invoke>\n</x:calls>'
    ),
}
