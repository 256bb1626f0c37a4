"""One run of a recipe, or one served model: checks and rehearsal before it, its loop, its end."""
