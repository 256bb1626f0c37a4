"""The commands, recipes and programs of the pages that a newcomer reads first run as they are written.

See test_docs.py for the rules of blocks.
"""

import sys

import pytest
from support.doc_blocks import SMALL
from support.doc_runs import SECONDS, copy_repository, run_in, run_shell_block, shell_blocks, whole_recipes

from areal_actors.core.devices import CudaDevices
from areal_actors.recipe.load import load

pytestmark = [pytest.mark.long, pytest.mark.timeout(SECONDS + 60)]


@pytest.mark.parametrize("block", shell_blocks(first_hour=True), ids=str)
def test_commands_do_what_the_page_describes(block, tmp_path):
    run_shell_block(block, tmp_path)


@pytest.mark.parametrize("block", whole_recipes(), ids=str)
def test_a_whole_recipe_trains(block, tmp_path):
    path = copy_repository(tmp_path) / "block.toml"
    path.write_text(block.text)
    lengths = load([path], [], CudaDevices(0, "none")).recipe
    assert lengths.sampling.max_tokens < lengths.generation.max_model_len
    run_in(tmp_path, [sys.executable, "-m", "areal_actors", "run", path.name, *SMALL, "steps=1", *block.settings])
