"""Several policies in one run: calls go to a policy by the name of their `model`, episodes end in each."""
