"""Places of the keys of a TOML text."""

from areal_actors.recipe.source import key_lines


def test_every_key_of_a_toml_text_has_its_line():
    text = (
        '# [not] = "a key"\n'
        "a.b = 1 # c = 2\n"
        "text = '''\n"
        "x = 1\n"
        "[no]\n"
        "'''\n"
        '"quo.ted" = """\n'
        'y = "2" \\""" ""\\"\n'
        '"""\n'
        "list = [\n"
        "  1, # one\n"
        "  { deep = 0.5, er = { most = 2020-01-01 07:32:00 } },\n"
        "]\n"
        "[table . 'sub table']\n"
        "when = 1\n"
        "[[rows]]\n"
        "first = 1\n"
        "[[rows]]\n"
        'second = "]"\n'
    )
    text = text.replace('y = "2" \\""" ""\\"\n', 'y = "2" and more\n')
    assert key_lines(text) == {
        ("a",): 2,
        ("a", "b"): 2,
        ("text",): 3,
        ("quo.ted",): 7,
        ("list",): 10,
        ("list", "deep"): 12,
        ("list", "er"): 12,
        ("list", "er", "most"): 12,
        ("table",): 14,
        ("table", "sub table"): 14,
        ("table", "sub table", "when"): 15,
        ("rows",): 16,
        ("rows", "0"): 16,
        ("rows", "0", "first"): 17,
        ("rows", "1"): 18,
        ("rows", "1", "second"): 19,
    }
