"""The programs of the documentation run to their end. See test_docs.py for the rules of blocks."""

import sys

import pytest
from support.doc_blocks import program
from support.doc_runs import SECONDS, copy_repository, run_in, scripts


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("block", scripts(), ids=str)
def test_a_program_runs_to_its_end(block, tmp_path):
    (copy_repository(tmp_path) / "program.py").write_text(program(block))
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(block.ranks)] * (block.ranks > 1)
    run_in(tmp_path, [sys.executable, *ranks, "program.py"])
