"""Draws by measured difficulty, and sources that end at a success rate."""
