"""Recipes from the configurations of other systems (AReaL, TRL, verl): `areal-actors init FOLDER --from FILE`."""
