"""The engine without a model, for load tests."""
