"""Batch assembly: complete groups within the staleness bound become batches."""
