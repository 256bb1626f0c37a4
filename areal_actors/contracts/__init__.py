"""Test cases that every part of a kind has to pass.

`pytest --pyargs areal_actors.contracts --areal-part engine:NAME` runs them.
"""
