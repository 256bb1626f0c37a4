"""What every part of a kind has to do, as test cases: `pytest --pyargs areal_actors.contracts --areal-part engine:NAME`."""
