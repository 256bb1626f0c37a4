"""Finds the place at which a chat template takes the list of tools and their results, by rendering them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from areal_actors.core.errors import RequestError
from areal_actors.tokenization.chat_template import ChatTemplate, ToolDialect
from areal_actors.tokenization.tool_parsers.probes import RESULT, TEXT, USER, ProbeCall, probe_tools

CALL = ProbeCall("look_up", {"word": "plain"}, "callW5o6r")
RESULT_ROLES = ("tool", "environment", "tool_response", "observation", "function", "ipython")
"""Roles of the messages that have results; clients send the first."""
TOOL_ENTRIES = ("functions", "tools")
"""Entries of a system message in which a few templates take the list of tools as text."""


def find_dialect(template: ChatTemplate) -> ToolDialect:
    """Return the form in which the template takes tools and results; sets the template's dialect to it."""
    dialect = ToolDialect(flat_tools=_needs_flat_tools(template))
    template.dialect = dialect
    if not lists_tools(template):
        for entry in TOOL_ENTRIES:
            template.dialect = dialect._replace(tools_entry=entry)
            if re.search(rf"""(?:\.|['"]){entry}\b""", template.source) and lists_tools(template):
                dialect = template.dialect
                break
    for role in RESULT_ROLES:
        template.dialect = dialect._replace(result_role=role)
        if (role == "tool" or re.search(rf"""['"]{role}['"]""", template.source)) and not drops_results(template):
            dialect = template.dialect
            break
    template.dialect = dialect
    return dialect


def lists_tools(template: ChatTemplate) -> bool:
    """True if a prompt with a tool has its name, or is rejected."""
    try:
        return CALL.name in template.render([USER], probe_tools([CALL]))
    except RequestError:
        return True


def drops_results(template: ChatTemplate) -> bool:
    """True if the template renders a conversation with the result of a tool, and leaves the result out."""
    result: Mapping[str, Any] = {"role": "tool", "tool_call_id": CALL.id, "name": CALL.name, "content": RESULT}
    call = {"id": CALL.id, "type": "function", "function": {"name": CALL.name, "arguments": '{"word": "plain"}'}}
    rendered = []
    for calls in ({"tool_calls": [call]}, {}):
        try:
            message = {"role": "assistant", "content": "" if calls else TEXT, **calls}
            rendered.append(template.render([USER, message, result], probe_tools([CALL])))
        except RequestError:
            continue
    return bool(rendered) and not any(RESULT in text for text in rendered)


def _needs_flat_tools(template: ChatTemplate) -> bool:
    """True if the template rejects tools in the usual form, but takes functions."""
    tools = probe_tools([CALL])
    for flat in (False, True):
        template.dialect = ToolDialect(flat_tools=flat)
        try:
            template.render([USER], tools)
        except RequestError:
            continue
        return flat
    return False
