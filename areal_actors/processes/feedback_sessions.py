"""The session manager of runs with external agents, whose feedback may come at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from areal_actors.canary.candidate_session_manager import CandidateSessionManager
from areal_actors.feedback.feedback_routes import FeedbackRoutes
from areal_actors.feedback.feedback_session_manager import FeedbackSessionManager
from areal_actors.folder.run_folder import RunFolder
from areal_actors.gateway.session_manager import SessionManager
from areal_actors.gateway.sessions.keys import feedback_key
from areal_actors.privacy.redaction import load_redaction
from areal_actors.recipe.recipe import Recipe


def manager_with_feedback(
    recipe: Recipe, folder: RunFolder, options: dict[str, Any]
) -> tuple[type[SessionManager], dict[str, Any]]:
    """Returns the class and the options of the session manager; `options` are those of an ordinary one.

    That of a served model with a candidate also assigns the weights of sessions.
    """
    routes = FeedbackRoutes(
        recipe.gateway.feedback, admin_key=folder.admin_key(recipe), feedback_key=feedback_key(folder.secret())
    )
    redaction = load_redaction(recipe.log.redaction, Path.cwd(), folder.secret())
    options = {**options, "add_routes": routes.add_routes, "redaction": redaction}
    if recipe.has_candidate():
        return CandidateSessionManager, {**options, "candidate": recipe.gateway.candidate}
    return FeedbackSessionManager, options
