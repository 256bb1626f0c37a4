"""The figures of the product's structure that `scripts/structure_figures.py` counts."""

import runpy
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent
SCRIPT = runpy.run_path(str(ROOT / "scripts/structure_figures.py"))


def test_files_that_features_change_are_summed_up():
    assert SCRIPT["describe_changes"](range(1, 21)) == "median 10.5, p90 19, of 20 commits"
    assert SCRIPT["describe_changes"]([]) == "no commit adds files"


def test_only_commits_that_add_files_of_the_product_are_features(tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPT["feature_changes"].__globals__, "ROOT", tmp_path)
    package = tmp_path / "areal_actors"
    package.mkdir()

    def commit(**files):
        for name, text in files.items():
            (package / f"{name}.py").write_text(text)
        for words in (["add", "."], ["-c", "user.name=A", "-c", "user.email=a@b", "commit", "-qm", "commit"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True)

    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    commit(a="1\n", b="1\n")
    commit(a="2\n")
    commit(a="3\n", b="3\n", c="new = 3\n")
    (package / "c.py").rename(package / "d.py")
    commit(a="4\n")
    assert SCRIPT["feature_changes"]("HEAD") == [2, 0]


def test_the_path_goes_from_file_to_file(tmp_path, monkeypatch):
    monkeypatch.setitem(SCRIPT["path_figures"].__globals__, "ROOT", tmp_path)
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text("one\ntwo\n")
    first, second = (SCRIPT["traced"].Function(name, 1, "f") for name in ("a.py", "b.py"))
    assert SCRIPT["path_figures"]([[first, first, second], [second, first]]) == "2 files, 4 lines, 2 switches"
