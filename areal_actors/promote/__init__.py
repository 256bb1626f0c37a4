"""Evidence of `areal-actors serve promote` beside the rewards of users: judged answers of a shadow, and divergence."""
