"""`serve`."""

from __future__ import annotations

from areal_actors.cli.command import CommandDescription
from areal_actors.cli.recipe_words import describe_words, takes_recipe

DESCRIPTION = CommandDescription(
    group="serve, and learn from what is served",
    place=1,
    summary="serve a recipe's model to external agents, without training",
    about=(
        "Serve the model of a recipe through the gateway until Ctrl-C: agents start sessions, call the model over the"
        " OpenAI or Anthropic protocol, set rewards, end and export their sessions. Nothing is trained. At most"
        " staleness_gate.max_concurrent × algorithm.group_size sessions run at once."
    ),
    epilog=describe_words("serve") + "\n\nServe a checkpoint with `model=runs/NAME/checkpoints/step-40`.",
    do="serve:serve",
    add_arguments=takes_recipe,
    takes_recipe=True,
)
