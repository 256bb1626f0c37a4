"""Evidence of `areal-actors promote` beside the rewards of users: judged answers of a shadow, and divergence."""
