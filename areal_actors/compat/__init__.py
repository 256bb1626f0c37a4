"""Modules through which programs written for other systems run here."""
