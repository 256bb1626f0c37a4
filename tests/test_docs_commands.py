"""The commands of the pages behind the first hour run as they are written. See test_docs.py for the rules of blocks."""

import pytest
from support.doc_runs import SECONDS, run_shell_block, shell_blocks


@pytest.mark.long
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("block", shell_blocks(first_hour=False), ids=str)
def test_commands_do_what_the_page_describes(block, tmp_path):
    run_shell_block(block, tmp_path)
